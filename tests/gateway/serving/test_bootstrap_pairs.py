"""Two legs at once: what ends one of them ends the other, and who is to blame."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from gateway.engines.base import EngineError
from gateway.engines.sglang import Bootstrap, SglangEngine
from gateway.handoff.sglang_bootstrap import SglangBootstrap
from router.messages import Release, RouteRequest, WorkerInfo
from tests.gateway.engines.test_sglang import LENGTH, said
from tests.gateway.raw_worker import Answer, RawWorker, broken_stream, endless_stream, running, status, stream
from tests.gateway.serving.test_dispatch import Bench

PREFILLED = stream(said([1], 1, reason={"type": "length", "length": 0}, cached=2))
DECODED = stream(
    said([1], 1, cached=2), said([1, 2], 2, cached=2), said([1, 2, 3], 3, reason=LENGTH, cached=2)
)


def answers(*generations: Answer) -> list[Answer]:
    """Those, one for each leg; an abort is answered by itself, whenever it comes."""
    left = list(generations)

    async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
        chosen = left.pop(0) if b'"input_ids"' in body else status(200)
        await chosen(writer, body)

    return [answer] * 20


class SglangBench(Bench):
    """The first workers prefill, the last ones decode."""

    def __init__(self, prefill: list[RawWorker], decode: list[RawWorker]) -> None:
        super().__init__([])
        self.engines: dict[str, Any] = {}
        for role, workers in (("prefill", prefill), ("decode", decode)):
            for number, worker in enumerate(workers):
                bootstrap = Bootstrap("h", 9) if role == "prefill" else None
                self.engines[f"{role}{number}"] = SglangEngine(worker.url, bootstrap=bootstrap)
                self.router.add_worker(
                    WorkerInfo(worker=f"{role}{number}", models=("m",), role=role)  # type: ignore[arg-type]
                )
        self.flights = self.flights_with(SglangBootstrap())
        self._use_last(f"prefill{len(prefill) - 1}")

    def _use_last(self, worker: str) -> None:
        """Let the first prefill worker be the next."""
        request = RouteRequest(request_id="", model="m", token_ids=np.zeros(1, np.uint32), role="prefill")
        chosen = ""
        while chosen != worker:
            placement = self.router.route(request)
            self.router.release(Release(placement.reservation))
            chosen = placement.target.worker


def rooms(worker: RawWorker) -> list[int]:
    return [body["bootstrap_room"] for path, body in worker.requests if path == "/generate"]


def aborted(worker: RawWorker) -> list[str]:
    return [body["rid"] for path, body in worker.requests if path == "/abort_request"]


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a raw worker has no such event
            await asyncio.sleep(0.01)


async def test_both_legs_are_sent_and_the_answer_is_decodes() -> None:
    async with running(PREFILLED) as p, running(DECODED) as d:
        bench = SglangBench([p], [d])
        flight = await bench.run()
        flight.close()
        assert bench.texts[-1].text == "1 2 3 "
        assert flight.cached_tokens == 2
        assert flight.workers == "prefill0 and decode0"
        assert rooms(p) == rooms(d)
        assert (bench.reservations, bench.double_releases, bench.failures) == (0, 0, [])


@pytest.mark.parametrize(
    "failing", [status(500), status(503), broken_stream()], ids=["500", "503", "dies after headers"]
)
async def test_a_prefill_leg_that_fails_ends_decode_and_both_begin_anew_elsewhere(failing: Answer) -> None:
    async with (
        running(*answers(failing)) as p0,
        running(*answers(PREFILLED)) as p1,
        running(*answers(endless_stream(), DECODED)) as d,
    ):
        bench = SglangBench([p0, p1], [d])
        flight = await bench.run()
        flight.close()
        assert bench.failures == ["prefill0"]
        assert bench.texts[-1].text == "1 2 3 "
        assert rooms(d) == rooms(p0) + rooms(p1)
        assert len(set(rooms(d))) == 2
        await until(lambda: len(aborted(d)) == 1)
        assert (bench.reservations, bench.double_releases) == (0, 0)


@pytest.mark.parametrize("failing", [status(500), broken_stream()], ids=["500", "dies after headers"])
async def test_a_decode_leg_that_fails_ends_the_prefill_leg(failing: Answer) -> None:
    async with running(*answers(endless_stream())) as p, running(*answers(failing)) as d:
        bench = SglangBench([p], [d])
        with pytest.raises(EngineError):
            await bench.run()
        assert bench.failures[0] == "decode0"
        await until(lambda: aborted(p))
        assert (bench.reservations, bench.double_releases) == (0, 0)


async def test_a_client_that_leaves_before_the_transfer_ends_both_legs() -> None:
    async with running(*answers(endless_stream())) as p, running(*answers(endless_stream())) as d:
        bench = SglangBench([p], [d])
        task = asyncio.create_task(bench.run())
        await p.asked.wait()
        await d.asked.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: aborted(p) and aborted(d))
        assert (bench.reservations, bench.double_releases) == (0, 0)


async def test_a_prefill_leg_that_breaks_after_the_transfer_does_no_harm() -> None:
    async with running(*answers(endless_stream())) as p, running(DECODED) as d:
        bench = SglangBench([p], [d])
        flight = await bench.run()
        flight.close()
        assert bench.texts[-1].text == "1 2 3 "
        assert flight.cached_tokens == 2
        await until(lambda: aborted(p))
        assert (bench.reservations, bench.double_releases) == (0, 0)
