"""Pass-through workers that fail before they answer: another one takes the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.gateway.api.conftest import Gateway, gateway
from tests.gateway.raw_worker import Answer, broken_stream, hang_up, status, stream

WHOLE = status(200, b'{"choices":[{"text":"hi"}]}')
STREAM = stream({"choices": [{"text": "hi"}]})


@asynccontextmanager
async def relays(*answers: Sequence[Answer]) -> AsyncIterator[Gateway]:
    async with gateway(*answers, endpoint="openai") as gw:
        yield gw
        assert gw.reservations == 0
        assert gw.services.router.snapshot_stats().ignored_releases == 0


@pytest.mark.parametrize("failing", [hang_up, status(500), status(503), status(401)])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_another_worker_answers(failing: Answer, streamed: bool) -> None:
    # Whichever of them is first.
    good = STREAM if streamed else WHOLE
    async with relays([failing, failing], [good, good]) as gw:
        for _ in range(2):
            response = await gw.chat(stream=streamed)
            assert response.status == 200
            assert "hi" in await response.text()
        assert len(gw.workers[1].requests) == 2


async def test_a_refusal_is_the_clients_answer() -> None:
    refusing = status(400, b'{"error":{"message":"no","param":"x"}}')
    async with relays([refusing], [refusing]) as gw:
        response = await gw.chat()
        assert (response.status, (await response.json())["error"]["param"]) == (400, "x")
        assert sum(len(worker.requests) for worker in gw.workers) == 1


async def test_when_all_fail_the_last_error_is_told() -> None:
    async with relays([status(503)], [status(503)]) as gw:
        response = await gw.chat()
        assert response.status == 503
        assert response.headers["Retry-After"]


async def test_a_stream_that_breaks_after_its_first_event_is_not_begun_anew() -> None:
    broken = broken_stream({"choices": [{"text": "hi"}]})
    async with relays([broken], [broken]) as gw:
        response = await gw.chat(stream=True)
        text = await response.text()
        assert "engine_error" in text
        assert text.endswith("data: [DONE]\n\n")
        assert sum(len(worker.requests) for worker in gw.workers) == 1
