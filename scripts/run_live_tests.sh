#!/usr/bin/env bash
# The tests against a real engine. Exit status 100: there are none, or there is no engine to be had here.
#
# usage: scripts/run_live_tests.sh [PYTEST OPTION...]
# Runs one after the other, for each has the machine to itself: two aggregated workers, the pair, the worker that
# has a tokenizer, SGLang's workers, and the pairs whose cached tokens are predicted.
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

result=100
apart=(tests/live/pair tests/live/k3 tests/live/sglang tests/live/routing)
for run in "tests/live ${apart[*]/#/--ignore }" "${apart[@]}"; do
    # shellcheck disable=SC2086 # a path and an option
    uv run pytest $run -rs --durations=10 "$@"
    status=$?
    case $status in
        0) ((result == 100)) && result=0 ;;
        5) ;; # pytest ran no test
        *) result=$status ;;
    esac
done
exit $result
