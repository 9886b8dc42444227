"""Routers by others, unmodified, in front of simulated workers; without them a skip that says so."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests.processes import Child, free_ports
from tests.simulator.peers.asking import MODEL, Asked, ask, is_up

ROOT = Path(__file__).resolve().parents[3]
PEERS_SETUP = ROOT / "loadtests/peers/setup.sh"
SMG_SETUP = ROOT / "tests/simulator/peers/setup_smg.sh"
READY_SECONDS = 60.0

Start = Callable[..., Asked]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[[str, list[str]], Child]]:
    """Starts processes; they end with the test."""
    running: list[Child] = []

    def start(name: str, command: list[str]) -> Child:
        running.append(Child(name, command, {}, ROOT, tmp_path / f"{name}.log"))
        running[-1].start()
        return running[-1]

    yield start
    for child in reversed(running):
        child.stop()


@pytest.fixture
def worker(processes: Callable[[str, list[str]], Child]) -> Start:
    """Starts a simulated worker that is ready when it is returned; options are flags."""

    def start(name: str, **options: Any) -> Asked:
        port, *_ = free_ports(1)
        flags = {"port": port, "model": MODEL, "name": name, "decode_seconds_per_step": 0.0005} | options
        command = [sys.executable, "-m", "simulator"]
        for flag, value in flags.items():
            command += ["--" + flag.replace("_", "-"), str(value)]
        url = f"http://127.0.0.1:{port}"
        processes(name, command).wait_ready(lambda: is_up(url), READY_SECONDS)
        return Asked(url)

    return start


@pytest.fixture
def router(processes: Callable[[str, list[str]], Child]) -> Start:
    """Starts a router and waits until it answers for the model."""

    def start(name: str, command: list[str], port: int) -> Asked:
        url = f"http://127.0.0.1:{port}"
        processes(name, command).wait_ready(lambda: _answers(url), READY_SECONDS)
        return Asked(url)

    return start


@pytest.fixture(scope="session")
def vllm_router() -> str:
    """The command of vllm-router."""
    return _installed("KVGATEWAY_VLLM_ROUTER", PEERS_SETUP, "vllm_router/bin/vllm-router")


@pytest.fixture(scope="session")
def smg() -> str:
    """The command of SMG."""
    return _installed("KVGATEWAY_SMG", SMG_SETUP, "bin/smg")


@pytest.fixture(params=["inline", "nixl"])
def transport(request: pytest.FixtureRequest) -> str:
    """What moves KV blocks."""
    name: str = request.param
    packages = ("nixl", "nixl_cu13", "nixl_cu12")
    if name == "nixl" and not any(importlib.util.find_spec(package) for package in packages):
        pytest.skip("NIXL is not installed")
    return name


def _installed(variable: str, setup: Path, path: str) -> str:
    """A router's command: named in the environment, else where a setup script puts it."""
    named = os.environ.get(variable)
    if named:
        return named
    where = subprocess.run([str(setup), "--where"], capture_output=True, text=True, check=True)
    command = Path(where.stdout.strip()) / path
    if not command.exists():
        pytest.skip(f"no {command}: run {setup.relative_to(ROOT)}, or name the command in {variable}")
    return str(command)


def _answers(url: str) -> bool:
    if not is_up(url):
        return False
    status, _ = ask(url + "/v1/completions", {"model": MODEL, "prompt": "?", "max_tokens": 1})
    return status == 200
