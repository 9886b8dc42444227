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
    pyproject.toml README.md LICENSE gateway router parsers fabric simulator loadtests |
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

import fabric, gateway, loadtests, parsers, router, simulator

small = resources.files("parsers").joinpath("kimi_k3", "small")
data = [file.name for file in small.iterdir() if file.name.endswith(".model")]
assert data, "the small vocabulary is not in the package"
print("package data:", *data)
CHECK

read -r port admin_port < <(python3 - <<'PORTS'
import random, socket

free = []  # below the ports that the system gives to others
while len(free) < 2:
    with socket.socket() as tried:
        port = random.randrange(20000, 30000)
        if port not in free and not tried.connect_ex(("127.0.0.1", port)) == 0:
            free.append(port)
print(*free)
PORTS
)
run+=("KVGATEWAY_PORT=$port" "KVGATEWAY_ADMIN_PORT=$admin_port")
"${run[@]}" kvgateway serve &
server=$!
# The image's own health check, read out of the Dockerfile.
health=$(sed -n '/^HEALTHCHECK/{n;s/^ *CMD //p}' "$work/Dockerfile")
"${run[@]}" python - "$health" <<'CHECK'
import json, subprocess, sys, time

command = json.loads(sys.argv[1])
deadline = time.monotonic() + 20
while (status := subprocess.run(command, stderr=subprocess.DEVNULL).returncode) and time.monotonic() < deadline:
    time.sleep(0.1)
print("health check:", status)
sys.exit(status)
CHECK
kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
echo "exit code after SIGTERM: $status"
exit $status
