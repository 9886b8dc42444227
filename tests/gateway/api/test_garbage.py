"""What a request leaves behind: memory that is reused at once is warm, and the collector has no work."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.api.test_server import say

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "ab"}]}


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """Objects that the collector finds in cycles from now on; call gc.collect() first."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_leaves_no_cycle_of_objects_behind(streamed: bool, garbage: list[object]) -> None:
    async with gateway([say(5, 6)] * 3) as gw:
        for _ in range(3):
            response = await gw.post("/v1/chat/completions", CHAT | {"stream": streamed})
            await response.read()
            assert response.status == 200
        gc.collect()
    ours = [
        type(each).__qualname__
        for each in garbage
        if type(each).__module__.startswith(("gateway.", "parsers.", "router."))
    ]
    assert ours == []
