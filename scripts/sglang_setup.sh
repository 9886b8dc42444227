#!/usr/bin/env bash
# Makes what tests/live/sglang needs outside the checkout: a venv with a real SGLang for CPU and a tiny model with K3's vocabulary.
#
# usage: scripts/sglang_setup.sh          needs ../shared/{sglang_cpu,vllm_cpu} (or KVGATEWAY_SHARED), uv, Python 3.11, the package index
# Progress goes to stderr; the only line on stdout is the finished directory:
#   ${KVGATEWAY_LIVE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvgateway}/sglang-<hash of what it is made from>
#     venv/                 the pinned packages of requirements.lock, NIXL among them
#     pylib/                what lets SGLang start without a GPU's packages
#     models/k3-vocab-attn/ random weights under which the output depends on every token of the context
# Idempotent: a finished directory is only named. Atomic: built aside under a lock, then renamed.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
shared="${KVGATEWAY_SHARED:-$root/../shared}"
cache="${KVGATEWAY_LIVE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvgateway}"
say() { printf '[sglang_setup %3ds] %s\n' "$SECONDS" "$*" >&2; }

for needed in sglang_cpu/requirements.lock vllm_cpu/make_weights.py; do
  [ -f "$shared/$needed" ] || { say "no $shared/$needed: nothing to build from"; exit 3; }
done
command -v uv >/dev/null || { say "uv is not on PATH"; exit 4; }

model=models/k3-vocab-attn
hash="$(cat "$shared/sglang_cpu/requirements.lock" "$shared"/sglang_cpu/pylib/*.py "$shared"/sglang_cpu/pylib/*/*.py \
  "$shared/vllm_cpu/make_weights.py" "$shared/vllm_cpu/$model/config.json" "$root/scripts/sglang_setup.sh" \
  | sha256sum | cut -c1-12)"
target="$cache/sglang-$hash"

mkdir -p "$cache"
exec 9>"$cache/sglang.lock"
flock -n 9 || { say "another setup is at work, waiting for it"; flock -w 900 9; }

if [ -d "$target" ]; then
  say "already there: $target"
  echo "$target"
  exit 0
fi

aside="$target.building"
rm -rf "$aside"
mkdir -p "$aside/$model"
trap 'rm -rf "$aside"' EXIT
cd "$aside" # away from the project, whose constraints uv would apply here too

say "building $target (2.7 GB)"
cp -r "$shared/sglang_cpu/pylib" pylib
cp "$shared/vllm_cpu/$model"/*.json "$model/"
chmod -R u+w pylib "$model"

say "creating the venv"
uv venv --quiet --python 3.11 --relocatable venv
say "installing $(wc -l <"$shared/sglang_cpu/requirements.lock") pinned packages"
find_links=()
[ -n "${PIP_FIND_LINKS:-}" ] && find_links=(--find-links "$PIP_FIND_LINKS")
UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-300}" uv pip install --quiet --no-deps --python venv/bin/python \
  "${find_links[@]}" -r "$shared/sglang_cpu/requirements.lock" >&2

say "making the model's weights"
HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 \
  venv/bin/python "$shared/vllm_cpu/make_weights.py" "$model" >&2
say "checking that SGLang and NIXL import" # and keeping the bytecode: without it each process compiles for ten seconds
(export SGLANG_USE_CPU_ENGINE=1 CUDA_VISIBLE_DEVICES='' PYTHONPATH="$PWD/pylib" PYTHONDONTWRITEBYTECODE=''
  venv/bin/python -c 'import importlib.metadata as m
import sglang.srt.entrypoints.http_server
import sglang.srt.managers.scheduler
import nixl._api
print("sglang", m.version("sglang"), "nixl", m.version("nixl-cu12"))') >&2

mv "$aside" "$target"
say "ready: $target ($(du -sh "$target" | cut -f1))"
echo "$target"
