"""`kvgateway demo` as its users run it: whole processes, a real gateway, Ctrl-C."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NIXL = any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu13", "nixl_cu12"))
PATIENCE = 120
"""Seconds after which something hangs, on however slow a machine."""

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are looked for in /proc")


def _command(*arguments: str, topology: str = "agg") -> list[str]:
    return [sys.executable, "-m", "gateway.cli", "demo", "--port", "0", "--topology", topology, *arguments]


def _check(*arguments: str, topology: str = "agg") -> tuple[int, str]:
    command = _command("--check", *arguments, topology=topology)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout + done.stderr


def _children(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.add(int(entry.name))
    return found


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(_command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(PATIENCE)
    assert process.stdout is not None
    process.stdout.close()


def _read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"the demo ended before {text!r}:\n{seen}")


@contextmanager
def _slow_stream(seen: str) -> Iterator[None]:
    """A stream that would go on for minutes."""
    found = re.search(r"curl -s (\S+)", seen)
    assert found is not None
    body = {
        "model": "moonshotai/Kimi-K3",
        "messages": [{"role": "user", "content": "slowly"}],
        "stream": True,
        "vllm_xargs": {"script_ids": [104] * 10_000, "delay_ms": 50},
    }
    request = urllib.request.Request(
        found[1], data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        assert response.readline().startswith(b"data: ")
        yield


def test_check_passes() -> None:
    code, output = _check()
    assert code == 0, output
    steps = re.findall(r"^ok    ([a-z ]+):", output, re.MULTILINE)
    assert steps == ["answer", "stream", "tool call", "prefix"]
    assert "the busier one (3 streams against 0)" in output


@pytest.mark.skipif(not NIXL, reason="NIXL is not installed")
@pytest.mark.parametrize("topology", ["1p2d", "2p1d"])
def test_prefill_and_decode_apart_pass(topology: str) -> None:
    code, output = _check(topology=topology)
    assert code == 0, output
    steps = re.findall(r"^ok    ([a-z ]+):", output, re.MULTILINE)
    decode = ["decode"] if topology == "1p2d" else []
    assert steps == [
        *("answer", "stream", "tool call", "transfer", "equal", "prefix"),
        *(*decode, "long prompt", "violations"),
    ]
    assert "transport nixl" in output


def test_the_handoff_without_nixl_is_labelled_inline() -> None:
    code, output = _check("--transport", "inline", topology="1p1d")
    assert code == 0, output
    assert "transport inline" in output


def test_round_robin_fails_the_prefix_step_and_no_other() -> None:
    code, output = _check("--policy", "round_robin")
    assert code == 1, output
    assert re.findall(r"^FAIL  ([a-z ]+):", output, re.MULTILINE) == ["prefix"]
    assert "repeats went elsewhere" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_process(demo: subprocess.Popen[str], number: signal.Signals) -> None:
    seen = _read_until(demo, "Ctrl-C stops everything")
    assert "curl -s http://127.0.0.1:" in seen
    assert "from openai import OpenAI" in seen
    children = _children(demo.pid)
    assert len(children) == 3
    with _slow_stream(seen):
        demo.send_signal(number)
        assert demo.wait(PATIENCE) == 0
    assert all(map(_gone, children))


def test_ctrl_c_while_it_starts_leaves_no_process(demo: subprocess.Popen[str]) -> None:
    _read_until(demo, "starting")
    children: set[int] = set()
    deadline = time.monotonic() + PATIENCE
    while not children and time.monotonic() < deadline:
        children = _children(demo.pid)
    demo.send_signal(signal.SIGINT)
    demo.wait(PATIENCE)
    assert children
    assert all(map(_gone, children))


def test_a_worker_that_dies_ends_the_demo(demo: subprocess.Popen[str]) -> None:
    seen = _read_until(demo, "Ctrl-C stops everything")
    children = _children(demo.pid)
    worker = int(re.findall(r"^worker .*\(process (\d+)\)$", seen, re.MULTILINE)[0])
    os.kill(worker, signal.SIGKILL)
    assert demo.wait(PATIENCE) == 1
    assert demo.stdout is not None
    assert "sim-0 ended with code -9" in demo.stdout.read()
    assert all(map(_gone, children))


def test_a_demo_that_is_killed_outright_takes_its_children_along(demo: subprocess.Popen[str]) -> None:
    _read_until(demo, "Ctrl-C stops everything")
    children = _children(demo.pid)
    demo.kill()
    demo.wait(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while not all(map(_gone, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(children) == 3
    assert all(map(_gone, children))


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    code, output = _check("--tokenizer", str(tmp_path))
    assert code == 1
    assert "tiktoken.model" in output
    code, output = _check("--policy", "nonsense")
    assert code == 1
    assert "nonsense" in output
