"""Children are waited for with their log, end with their whole group, and do not inherit our settings."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtests.processes import Child, ProcessFailedError, free_ports, pinned, wait_until

Make = Callable[..., Child]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(code: str, **env: str) -> Child:
        return Child("child", [sys.executable, "-c", code], env, tmp_path, tmp_path / "child.log")

    return make


def is_gone(pid: int) -> bool:
    """The process is not there, or only waits to be reaped by init."""
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_child_that_ends_while_starting_fails_with_its_log(make: Make) -> None:
    child = make("import sys; print('cannot bind'); sys.exit(7)")
    child.start()
    with pytest.raises(ProcessFailedError, match=r"ended with 7(.|\n)*cannot bind"):
        child.wait_ready(lambda: False, 20.0)
    assert child.last_line() == "cannot bind"


def test_a_child_that_takes_too_long_fails_with_its_log(make: Make) -> None:
    child = make("import time; print('loading', flush=True); time.sleep(60)")
    child.start()
    wait_until("it logs", lambda: "loading" in child.tail(), 20.0)
    with pytest.raises(ProcessFailedError, match=r"not within 0 s: child answers(.|\n)*loading"):
        child.wait_ready(lambda: False, 0.3)
    child.stop()
    assert not child.alive


@pytest.mark.parametrize("end", [Child.kill, Child.stop])
def test_the_whole_group_ends(make: Make, end: Callable[[Child], None]) -> None:
    child = make(
        "import subprocess, sys, time\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True)\n"
        "time.sleep(60)"
    )
    child.start()
    wait_until("the grandchild runs", lambda: child.last_line().isdecimal(), 20.0)
    grandchild = int(child.last_line())
    end(child)
    assert not child.alive
    wait_until("the grandchild is gone", lambda: is_gone(grandchild), 5.0)


def test_a_child_that_ignores_sigterm_is_killed(make: Make) -> None:
    child = make(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    child.start()
    wait_until("it is up", lambda: child.last_line() == "up", 20.0)
    child.stop(seconds=0.2)
    assert not child.alive


def test_it_can_be_started_again(make: Make) -> None:
    child = make("print('up')")
    for _ in range(2):
        child.start()
        wait_until("it ends", lambda: not child.alive, 20.0)
    assert child.tail().count("up") == 2


def test_our_settings_are_not_inherited(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATEWAY_PORT", "1")
    child = make("import os; print(sorted(k for k in os.environ if 'KVG' in k))", KVGATEWAY_POLICY="random")
    child.start()
    wait_until("it ends", lambda: not child.alive, 20.0)
    assert child.last_line() == "['KVGATEWAY_POLICY']"


def test_waiting_names_what_was_not_to_be() -> None:
    with pytest.raises(ProcessFailedError, match=r"not within 0 s: rain \(last answer: 0\)"):
        wait_until("rain", lambda: 0, 0.05, every=0.01)


def test_waiting_ends_with_the_condition() -> None:
    started = time.monotonic()
    wait_until("soon", lambda: time.monotonic() - started > 0.05, 5.0, every=0.01)
    assert time.monotonic() - started < 2.0


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


def test_a_pinned_command_runs_on_one_core() -> None:
    code = "import os; print(len(os.sched_getaffinity(0)))"
    done = subprocess.run(pinned([sys.executable, "-c", code], 0), capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1 or len(os.sched_getaffinity(0)) == 1
    assert pinned(["true"], None) == ["true"]
