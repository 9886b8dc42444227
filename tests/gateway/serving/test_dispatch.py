"""Routing, starting, retrying elsewhere and letting go: a real router, workers scripted byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from gateway.engines.base import EngineError
from gateway.engines.vllm import VllmEngine
from gateway.handoff.base import Handoff
from gateway.handoff.fabric import Fabric, FabricPool
from gateway.handoff.nixl_pull import NixlPull
from gateway.serving.admission import Admission
from gateway.serving.dispatch import Dispatcher
from gateway.serving.flight import Flight, Flights
from gateway.serving.generation import Choice, Generation, Observer
from gateway.serving.job import Job
from gateway.serving.reaper import Reaper
from gateway.telemetry.metrics import Metrics
from gateway.tokens.prompts import EncodedPrompt
from parsers.base import ContentDelta, Finish, KvShape, OutputEvent
from router.messages import NoWorkerError, Release, RouteRequest, WorkerInfo
from router.selector import Router
from tests.gateway.raw_worker import (
    Answer,
    RawWorker,
    broken_stream,
    endless_stream,
    hang_up,
    running,
    silence,
    status,
    stream,
    tokens,
)

OK = stream(tokens(1, 2), tokens(3, finish="stop"))


class Numbers:
    """A parser that spells ids; 0 gives nothing, as a held-back marker would."""

    reasoning_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> list[OutputEvent]:
        return [ContentDelta(f"{i} ") for i in token_ids if i]

    def feed_text(self, text: str) -> list[OutputEvent]:
        return [ContentDelta(text)]

    def finish(self, engine_reason: str) -> list[OutputEvent]:
        return [Finish(engine_reason)]


class Text:
    """An emitter that keeps the text of one attempt."""

    def __init__(self) -> None:
        self.text = ""
        self.reason: str | None = None

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        for event in events:
            if isinstance(event, ContentDelta):
                self.text += event.text
            elif isinstance(event, Finish):
                self.reason = event.reason

    def flush(self) -> None: ...


class Bench:
    """A dispatcher over some raw workers."""

    def __init__(self, workers: Sequence[RawWorker], lease_seconds: float = 5.0) -> None:
        self.workers = workers
        self.router = Router("round_robin", seed=1)
        self.engines = {f"w{i}": VllmEngine(worker.url, "generate") for i, worker in enumerate(workers)}
        for name in self.engines:
            self.router.add_worker(WorkerInfo(worker=name, models=("m",)))
        self.metrics = Metrics()
        self.failures: list[str] = []
        self.texts: list[Text] = []
        self.reaper = Reaper(lease_seconds)
        self.fabric = Fabric({"": FabricPool(shape=KvShape(1000.0, 2))})
        self.handoff: Handoff = NixlPull(30)
        self.flights = self.flights_with(self.handoff)
        self._make_the_first_worker_next()

    def flights_with(self, handoff: Handoff) -> Flights:
        admission = Admission(10, 5.0)
        dispatcher = Dispatcher(self.router, self, handoff, self.metrics, admission, self.reaper, self.fabric)
        return Flights(dispatcher, continuations=1)

    def _make_the_first_worker_next(self) -> None:
        request = RouteRequest(request_id="", model="m", token_ids=np.zeros(1, np.uint32))
        last = list(self.engines)[-1:]
        while last:
            placement = self.router.route(request)
            self.router.release(Release(placement.reservation))
            if placement.target.worker == last[0]:
                return

    def engine(self, worker: str) -> VllmEngine | None:
        return self.engines.get(worker)

    def report_failure(self, worker: str, error: EngineError) -> None:
        self.failures.append(worker)

    def generation(self, observer: Observer) -> Generation:
        self.texts.append(Text())
        return Generation([Choice(Numbers(), None)], self.texts[-1], observer)

    def job(self) -> Job:
        return Job(
            request_id="r",
            model="m",
            prompt=EncodedPrompt(np.array([1, 2, 3], np.uint32), b"1,2,3"),
            sampling={},
            top_level={},
            max_tokens=10,
            cache_salt=None,
            started=0.0,
        )

    async def run(self) -> Flight:
        return await self.flights.run(self.job(), self.generation)

    async def open(self) -> Flight:
        return await self.flights.open(self.job(), self.generation)

    @property
    def reservations(self) -> int:
        return self.router.snapshot_stats().open_reservations

    @property
    def double_releases(self) -> int:
        return self.router.snapshot_stats().ignored_releases


async def bench_run(*answers: Sequence[Answer]) -> Bench:
    """Run one whole request over workers with those answers; nothing may be left reserved."""
    async with contexts(*answers) as bench:
        try:
            flight = await bench.run()
            flight.close()
        finally:
            assert bench.reservations == 0
            assert bench.double_releases == 0
        return bench


class contexts:  # noqa: N801
    """`async with` over a bench with one raw worker for each sequence of answers."""

    def __init__(self, *answers: Sequence[Answer]) -> None:
        self._stack = [running(*own) for own in answers]

    async def __aenter__(self) -> Bench:
        return Bench([await context.__aenter__() for context in self._stack])

    async def __aexit__(self, *exc: object) -> None:
        for context in self._stack:
            await context.__aexit__(None, None, None)


async def test_a_request_runs_on_the_chosen_worker_and_its_reservation_is_released() -> None:
    bench = await bench_run([OK])
    assert (bench.texts[-1].text, bench.texts[-1].reason) == ("1 2 3 ", "stop")


@pytest.mark.parametrize(
    "first",
    [hang_up, status(500), status(503), status(401), broken_stream()],
    ids=["hangs up", "500", "503", "401", "dies after headers"],
)
async def test_a_whole_answer_is_made_elsewhere_when_its_worker_fails(first: Answer) -> None:
    bench = await bench_run([first], [OK])
    assert bench.failures == ["w0"]
    assert bench.texts[-1].text == "1 2 3 "


@pytest.mark.parametrize(
    ("answer", "blamed"),
    [
        (hang_up, True),
        (status(500), True),
        (broken_stream(tokens(7)), False),
        (status(400), False),
        (OK, False),
    ],
    ids=["hangs up", "500", "dies after a first token", "400", "well"],
)
async def test_the_router_learns_which_worker_fails_at_once(answer: Answer, blamed: bool) -> None:
    """A death after a first token counts too, but only that one: the worker did work."""
    async with contexts([answer] * 3) as bench:
        for _ in range(3):
            with contextlib.suppress(EngineError):
                (await bench.run()).close()
        (target,) = bench.router.snapshot_stats().targets
        assert (target.failures == 3) is blamed
        assert target.failures in (0, 1, 3)


async def test_a_choice_that_nobody_asked_for_is_another_workers_to_answer() -> None:
    bench = await bench_run([stream(tokens(1, index=1))], [stream(tokens(7, finish="stop"))])
    assert bench.texts[-1].text == "7 "
    assert bench.failures == ["w0"]


async def test_a_refusal_of_the_request_is_not_tried_elsewhere() -> None:
    with pytest.raises(EngineError) as caught:
        await bench_run([status(400, b'{"error":{"message":"bad"}}')], [OK])
    assert caught.value.status == 400


async def test_the_last_failure_is_reported_when_no_worker_is_left() -> None:
    with pytest.raises(EngineError) as caught:
        await bench_run([status(503)])
    assert caught.value.status == 503


async def test_attempts_are_bounded() -> None:
    async with contexts(*[[status(500)] * 2 for _ in range(5)]) as bench:
        with pytest.raises(EngineError):
            await bench.run()
    assert len(bench.failures) == 3


async def test_no_worker_at_all_is_said() -> None:
    async with contexts() as bench:
        with pytest.raises(NoWorkerError):
            await bench.run()


async def test_a_stream_that_dies_before_its_first_event_is_made_elsewhere() -> None:
    # The first worker's one token gives no event: the client has seen nothing.
    async with contexts([broken_stream(tokens(0))], [OK]) as bench:
        flight = await bench.open()
        await flight.wait()
        flight.close()
        assert bench.texts[-1].text == "1 2 3 "
        assert (bench.reservations, bench.double_releases) == (0, 0)


async def test_closing_a_flight_stops_the_worker_and_releases_once() -> None:
    async with running(endless_stream(tokens(1))) as worker:
        bench = Bench([worker])
        flight = await bench.open()
        assert bench.reservations == 1
        flight.close()
        flight.close()
        assert (bench.reservations, bench.double_releases) == (0, 0)
        await asyncio.wait_for(worker.left.wait(), 5)


Stage = Callable[[Bench], "asyncio.Task[Flight]"]


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "answer",
    [silence, endless_stream(), endless_stream(tokens(0))],
    ids=["before the headers", "after the headers", "before the first event"],
)
async def test_a_client_that_leaves_stops_the_worker_and_leaves_nothing(answer: Answer, whole: bool) -> None:
    async with running(answer) as worker:
        bench = Bench([worker])
        task = asyncio.create_task(bench.run() if whole else bench.open())
        await worker.asked.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (bench.reservations, bench.double_releases) == (0, 0)
        await asyncio.wait_for(worker.left.wait(), 5)


@pytest.mark.parametrize("turns", range(12))
async def test_cancellation_after_any_number_of_loop_turns_leaves_nothing(turns: int) -> None:
    async with running(OK) as worker:
        bench = Bench([worker])
        task = asyncio.create_task(bench.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            flight = await task
            flight.close()
        except asyncio.CancelledError:
            pass
        assert (bench.reservations, bench.double_releases) == (0, 0)
