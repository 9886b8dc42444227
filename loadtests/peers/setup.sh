#!/usr/bin/env bash
# Builds the load driver and the mock worker and installs the peers of the scorecard outside the checkout.
#
# usage: loadtests/peers/setup.sh [--where]     needs cc, uv, Python 3.11 and the package index; --where only names the directory
# Progress goes to stderr; the only line on stdout is the directory:
#   ${KVGATEWAY_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/kvgateway/peers-<hash of what it is made from>}
#     bin/mock_worker bin/load_driver     from the C files beside this script
#     dynamo/ vllm_router/                one environment a peer, versions pinned in dynamo.txt and vllm_router.txt
#     model/                              what Dynamo's mock worker serves
# Idempotent: a finished directory is only named. Atomic: built aside under a lock, then renamed.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/kvgateway"
hash="$(cd "$here" && cat setup.sh ./*.c ./*.txt make_model.py | sha256sum | cut -c1-12)"
target="${KVGATEWAY_PEERS:-$cache/peers-$hash}"
say() { printf '[peers %3ds] %s\n' "$SECONDS" "$*" >&2; }

if [ "${1:-}" = --where ]; then
  echo "$target"
  exit 0
fi

command -v cc >/dev/null || { say "no C compiler (cc) on PATH"; exit 3; }
command -v uv >/dev/null || { say "uv is not on PATH"; exit 4; }

mkdir -p "$(dirname "$target")"
exec 9>"$(dirname "$target")/peers.lock"
flock -n 9 || { say "another setup is at work, waiting for it"; flock -w 900 9; }

if [ -d "$target" ]; then
  say "already there: $target"
  echo "$target"
  exit 0
fi

aside="$target.building"
rm -rf "$aside"
mkdir -p "$aside/bin"
trap 'rm -rf "$aside"' EXIT
cd "$aside" # away from the project, whose constraints uv would apply here too

say "building $target (about a minute, 0.8 GB)"
cc -O2 -w -o "$aside/bin/mock_worker" "$here/mock_worker.c"
cc -O2 -w -o "$aside/bin/load_driver" "$here/load_driver.c"
for peer in vllm_router dynamo; do
  say "installing $peer"
  uv venv --quiet --python 3.11 --relocatable "$aside/$peer"
  UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-300}" uv pip install --quiet --no-deps \
    --python "$aside/$peer/bin/python" -r "$here/$peer.txt" >&2
done
say "making the model of the mock worker"
"$aside/dynamo/bin/python" "$here/make_model.py" "$aside/model" >&2

mv "$aside" "$target"
say "ready: $target ($(du -sh "$target" | cut -f1))"
echo "$target"
