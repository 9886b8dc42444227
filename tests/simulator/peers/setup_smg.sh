#!/usr/bin/env bash
# Installs SMG, a router that tests put in front of simulated workers, outside the checkout.
#
# usage: tests/simulator/peers/setup_smg.sh [--where]     needs uv, Python 3.11 and the package index
# Progress goes to stderr; the only line on stdout is the environment's directory. --where only names it.
# A finished one is only named. It is built aside and then renamed.
set -euo pipefail

pins="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/smg.txt"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/kvgateway"
target="$cache/smg-$(sha256sum <"$pins" | cut -c1-12)"

if [ "${1:-}" != --where ] && [ ! -d "$target" ]; then
  mkdir -p "$cache"
  aside="$(mktemp -d "$cache/smg.XXXXXX")"
  trap 'rm -rf "$aside"' EXIT
  cd "$aside" # away from the project, whose constraints uv would apply here too
  echo "installing $target (130 MB)" >&2
  uv venv --quiet --python 3.11 --relocatable "$aside/smg"
  UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-300}" uv pip install --quiet --no-deps \
    --python "$aside/smg/bin/python" -r "$pins" >&2
  mv -T "$aside/smg" "$target" 2>/dev/null || [ -d "$target" ] # another one was first
fi
echo "$target"
