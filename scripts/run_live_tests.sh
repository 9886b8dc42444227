#!/usr/bin/env bash
# The tests against a real engine. Exit status 100: there are none, or there is no engine to be had here.
set -uo pipefail
cd "$(dirname "$0")/.."

if [[ -z $(find tests/live -name 'test_*.py' 2>/dev/null) ]]; then
    echo "tests/live has no tests"
    exit 100
fi
if [[ -x scripts/live_setup.sh ]]; then
    scripts/live_setup.sh
    status=$?
    ((status == 3)) && exit 100 # nothing to build the engine from
    ((status == 0)) || exit $status
fi
uv run pytest tests/live -rs --timeout 300
status=$?
if ((status == 5)); then # pytest ran no test
    exit 100
fi
exit $status
