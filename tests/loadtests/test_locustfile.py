"""The locust users, headless, against the demo: a few seconds on loopback.

Locust patches sockets, so it runs in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.processes import Child, free_ports

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = ROOT / "loadtests/locustfile.py"


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[str]:
    """URL of a running demo."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "gateway.cli", "demo", "--port", str(port)]
    child = Child("demo", command, {}, ROOT, tmp_path / "demo.log")
    child.start()
    try:
        child.wait_ready(lambda: is_ready(port), 60.0)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stop()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_users_report_first_token_and_inter_token_times(demo: str) -> None:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--json", "--host", demo]
    command += ["-u", "3", "-r", "3", "-t", "8s", "--max-tokens", "16", "--turns", "2"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    entries = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert entries.keys() == {"/v1/chat/completions", "first token", "inter-token", "answer"}
    for entry in entries.values():
        assert entry["num_requests"] > 0
        assert entry["num_failures"] == 0
    assert entries["inter-token"]["num_requests"] > entries["first token"]["num_requests"]
