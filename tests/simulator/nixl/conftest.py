"""Workers as processes of their own, with NIXL between them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fabric.nixl import NixlMissingError, Runtime, load
from simulator.cli import ready_url

Json = dict[str, Any]
PATIENCE = 60.0


class Process:
    """`python -m simulator`, ready."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "simulator", "--speedup", "1000", "--num-blocks", "2000", *arguments]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.popen.stdout is not None
        url = ready_url(self.popen.stdout.readline())
        assert url is not None
        self.url = url

    def request(self, path: str, body: Json | None = None) -> tuple[int, Any]:
        """Status and answer of a POST, or of a GET without a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def complete(self, ids: list[int], **fields: Any) -> tuple[int, Any]:
        """A completion."""
        return self.request("/v1/completions", {"prompt": ids, "max_tokens": 100} | fields)

    def prefill(self, ids: list[int]) -> Json:
        """A prefill leg's parameters."""
        status, answer = self.complete(ids, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
        assert status == 200
        params: Json = answer["kv_transfer_params"]
        return params

    def text(self, ids: list[int], **fields: Any) -> str:
        """A completion's text."""
        status, answer = self.complete(ids, **fields)
        assert status == 200
        text: str = answer["choices"][0]["text"]
        return text

    def state(self) -> Json:
        """The first rank's state, and the worker's."""
        _, state = self.request("/sim/state")
        found: Json = state | state["ranks"][0]
        return found

    def until(self, **expected: Any) -> Json:
        """Wait for a state."""
        deadline = time.monotonic() + PATIENCE
        while True:
            state = self.state()
            if all(state[name] == value for name, value in expected.items()):
                return state
            assert time.monotonic() < deadline, f"never {expected}: {state}"
            time.sleep(0.01)

    def stop(self) -> int:
        """End it; its exit status."""
        self.popen.terminate()
        return self.popen.wait(PATIENCE)


@pytest.fixture(scope="session")
def nixl() -> Runtime:
    """NIXL, where there is one."""
    try:
        return load()
    except NixlMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def worker(nixl: Any) -> Iterator[Callable[..., Process]]:
    """Starts workers of a test's own."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(Process("--transport", "nixl", *arguments))
        return started[-1]

    yield start
    for process in started:
        if process.popen.poll() is None:
            process.stop()


@pytest.fixture(scope="module", params=["attention", "mla+mamba*3"])
def pair(request: pytest.FixtureRequest, nixl: Any) -> Iterator[tuple[Process, Process]]:
    """A prefill worker and a decode worker that a module's tests share."""
    workers = [Process("--role", role, "--kv-groups", request.param) for role in ("prefill", "decode")]
    yield workers[0], workers[1]
    assert [worker.stop() for worker in workers] == [0, 0]


@pytest.fixture(scope="session")
def prompt() -> Callable[[int], list[int]]:
    """Other token ids each time: workers that tests share have cached the ones before."""
    dice = random.Random(0)
    return lambda count: [dice.randrange(300, 3000) for _ in range(count)]
