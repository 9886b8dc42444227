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

(
    cd "$work/src"
    export UV_PROJECT_ENVIRONMENT="$work/kvgateway" UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
    unset VIRTUAL_ENV
    uv sync --quiet --no-default-groups --no-install-project
    uv sync --quiet --no-default-groups --no-editable
)
rm -rf "$work/src"
echo "environment: $(du -sm "$work/kvgateway" | cut -f1) MB"

as_user=(env -i "PATH=$work/kvgateway/bin:/usr/bin:/bin" HOME=/nonexistent)
if ((EUID == 0)) && command -v setpriv >/dev/null; then
    if setpriv --reuid=10001 --regid=10001 --clear-groups "$work/kvgateway/bin/python" -c '' 2>/dev/null; then
        as_user=(setpriv --reuid=10001 --regid=10001 --clear-groups "${as_user[@]}")
    else
        echo "the interpreter is closed to other users: running as this one"
    fi
fi
cd /
"${as_user[@]}" kvgateway version
"${as_user[@]}" python - <<'CHECK'
from importlib import resources
data = [f.name for f in resources.files("parsers").joinpath("kimi_k3", "small").iterdir() if f.name.endswith(".model")]
assert data, "the small vocabulary is not in the package"
import gateway, loadtests, parsers, router, simulator
print("package data:", *data)
CHECK
