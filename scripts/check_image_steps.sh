#!/usr/bin/env bash
# The steps of the Dockerfile by hand, in an empty folder: build the environment from the files that .dockerignore
# lets through, then run it away from the source, as another user where that is possible.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
chmod 755 "$work"

mkdir "$work/src"
git ls-files --cached --others --exclude-standard -z -- \
    pyproject.toml README.md LICENSE gateway router parsers simulator loadtests |
    xargs -0 cp --parents -t "$work/src"

# An interpreter that every user may run, like the image's; a personal one may lie in a closed home.
[[ -x /usr/bin/python3.11 ]] && export UV_PYTHON=/usr/bin/python3.11
(
    cd "$work/src"
    export UV_PROJECT_ENVIRONMENT="$work/kvgateway" UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
    unset VIRTUAL_ENV
    uv sync --quiet --no-default-groups --no-install-project
    uv sync --quiet --no-default-groups --no-editable
)
rm -rf "$work/src"
echo "environment: $(du -sm "$work/kvgateway" | cut -f1) MB"

run=(env -i "PATH=$work/kvgateway/bin:/usr/bin:/bin" HOME=/nonexistent PYTHONUNBUFFERED=1)
other=(setpriv --reuid=10001 --regid=10001 --clear-groups)
if "${other[@]}" "${run[@]}" python -c '' 2>/dev/null; then
    run=("${other[@]}" "${run[@]}")
fi
echo "running as user $("${run[@]}" id -u)"
cp Dockerfile "$work"
cd /
"${run[@]}" kvgateway version
"${run[@]}" python - <<'CHECK'
from importlib import resources

import gateway, loadtests, parsers, router, simulator

small = resources.files("parsers").joinpath("kimi_k3", "small")
data = [file.name for file in small.iterdir() if file.name.endswith(".model")]
assert data, "the small vocabulary is not in the package"
print("package data:", *data)
CHECK
