"""Pieces of the demo on their own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.demo import processes
from gateway.demo.launcher import DemoError, free_ports
from gateway.demo.processes import Child, Processes
from gateway.demo.tour import WEATHER, _misfit
from simulator.cli import ready_url

STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)


def test_ports_are_free_and_different() -> None:
    first, second = free_ports(0, 0)
    assert first != second


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DemoError, match=str(port)):
            free_ports(port)


async def test_a_child_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.05)
    child = _stubborn()
    async with Processes(tmp_path) as running:
        running.children.append(Child("stubborn", child, tmp_path / "log"))
    assert child.returncode == -signal.SIGKILL


def _stubborn() -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"deaf\n"
    child.stdout.close()
    return child


async def test_settings_for_another_gateway_do_not_reach_the_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVGATEWAY_POLICY", "random")
    async with Processes(tmp_path) as running:
        child = running.start("platform", "os", [])
        child.process.wait()
    assert "KVGATEWAY_POLICY" not in processes._environment()
    assert child.text() == ""


def test_the_address_is_read_from_the_log() -> None:
    line = "simulator a b: m on http://127.0.0.1:5, KV events on tcp://127.0.0.1:6, replay on tcp://127.0.0.1:7\n"
    assert ready_url("noise\n" + line) == "http://127.0.0.1:5"
    assert ready_url("noise\n") is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"city": "Oslo", "days": 1, "unit": "kelvin"}, None),
        ({"city": "Oslo", "days": 1}, "missing"),
        ({"city": "Oslo", "days": 1, "unit": "kelvin", "x": 1}, "not declared"),
        ({"city": "Oslo", "days": "1", "unit": "kelvin"}, "days"),
        ({"city": "Oslo", "days": 1, "unit": "rankine"}, "unit"),
        ([], "not an object"),
    ],
)
def test_arguments_that_do_not_fit(value: object, problem: str | None) -> None:
    found = _misfit(value, WEATHER["parameters"])
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize("port", ["99999", "-1", "x"])
def test_a_port_that_is_none_is_one_line_and_exit_code_2(port: str) -> None:
    command = [sys.executable, "-m", "gateway.cli", "demo", f"--port={port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--port" in done.stderr
