"""Simulated workers in the test's own process: real sockets, real events, a real side channel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.simulator.conftest import RunningWorker
from tests.simulator.conftest import start as _start
from tests.simulator.conftest import tokens as _tokens

Start = Callable[..., Awaitable[RunningWorker]]

tokens = _tokens
start = _start


@pytest.fixture
async def pair(start: Start) -> tuple[RunningWorker, RunningWorker]:
    """A prefill and a decode worker that fit."""
    return await start(role="prefill", transport="inline"), await start(role="decode", transport="inline")
