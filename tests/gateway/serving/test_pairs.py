"""Prefill on one worker, decode on another: order, blame, retries and what is released."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest

from gateway.engines.base import EngineError
from gateway.engines.vllm import VllmEngine
from gateway.handoff.nixl_pull import REMOTE_DECODE
from gateway.serving.errors import RequestError
from gateway.serving.failures import MAX_FAILURES
from router.messages import NoWorkerError, RouteRequest, WorkerInfo
from tests.gateway.handoff.parameters import PARAMETERS
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
from tests.gateway.serving.test_dispatch import Bench

DECODED = stream(tokens(1, 2), tokens(3, finish="stop"))


NEW: dict[str, Any] = {}
_legs = count()


def prefilled(parameters: Any = NEW, cached: int = 2) -> Answer:
    """A prefill leg that ends well; with parameters of its own, unless they are given."""
    usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": cached}}

    async def answer(writer: asyncio.StreamWriter, request: bytes) -> None:
        own = {**PARAMETERS, "remote_request_id": f"r-{next(_legs)}"} if parameters is NEW else parameters
        body = {"choices": [{"token_ids": [9]}], "usage": usage, "kv_transfer_params": own}
        await status(200, msgspec.json.encode(body))(writer, request)

    return answer


class PairBench(Bench):
    """The first workers prefill, the last ones decode."""

    def __init__(self, prefill: list[Any], decode: list[Any], lease_seconds: float = 5.0) -> None:
        super().__init__([*prefill, *decode], lease_seconds)
        names = list(self.engines)
        for name in names:
            role = "prefill" if name in names[: len(prefill)] else "decode"
            self.router.add_worker(WorkerInfo(worker=name, models=("m",), role=role))

    def add_aggregated(self, worker: RawWorker, sequences: int) -> None:
        """A worker that does both, busy with some requests that are never released: a pair is preferred."""
        name = f"w{len(self.engines)}"
        self.engines[name] = VllmEngine(worker.url, "generate")
        self.router.add_worker(WorkerInfo(worker=name, models=("m",)))
        request = RouteRequest(request_id="", model="m", token_ids=np.zeros(1, np.uint32))
        for _ in range(sequences):
            self.router.route(request)

    def _make_the_first_worker_next(self) -> None:
        """Roles are not set yet; a request that fails on one worker may start on any."""


async def test_the_parameters_go_from_prefill_to_decode_untouched_and_the_first_token_is_dropped() -> None:
    async with running(prefilled(PARAMETERS)) as p, running(DECODED) as d:
        bench = PairBench([p], [d])
        flight = await bench.run()
        flight.close()
        prefill, decode = p.requests[0][1], d.requests[0][1]
        assert bench.texts[-1].text == "1 2 3 "
        assert flight.cached_tokens == 2
        assert flight.workers == "w0 and w1"
        assert (bench.reservations, bench.double_releases) == (0, 0)
    assert prefill["stream"] is False
    assert prefill["sampling_params"]["max_tokens"] == 1
    assert prefill["kv_transfer_params"] == msgspec.json.decode(REMOTE_DECODE)
    assert decode["stream"] is True
    assert decode["kv_transfer_params"] == PARAMETERS
    assert prefill["request_id"] == decode["request_id"]


async def test_the_router_learns_from_both_legs() -> None:
    async with running(prefilled(), status(500)) as p, running(DECODED) as d:
        bench = PairBench([p], [d])
        (await bench.run()).close()
        stats = bench.router.snapshot_stats()
        assert (stats.overlap.reported, stats.overlap.reported_tokens) == (1, 2)
        with pytest.raises(EngineError):
            await bench.run()
        failures = {each.key.worker: each.failures for each in bench.router.snapshot_stats().targets}
        assert failures == {"w0": 1, "w1": 0}


async def test_decode_is_reserved_before_prefill_starts() -> None:
    async with running(silence) as p, running() as d:
        bench = PairBench([p], [d])
        task = asyncio.create_task(bench.run())
        await p.asked.wait()
        loads = {target.key.worker: target.sequences for target in bench.router.snapshot_stats().targets}
        assert loads == {"w0": 1, "w1": 1}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (bench.reservations, bench.double_releases) == (0, 0)


@pytest.mark.parametrize(
    "failing",
    [hang_up, status(500), status(503), prefilled(None), prefilled({"do_remote_prefill": True})],
    ids=["hangs up", "500", "503", "no parameters", "incomplete parameters"],
)
async def test_a_prefill_that_fails_is_done_by_another_worker_for_the_same_decode(failing: Answer) -> None:
    async with (
        running(failing, failing) as p0,
        running(prefilled(), prefilled()) as p1,
        running(DECODED, DECODED) as d,
    ):
        bench = PairBench([p0, p1], [d])
        for _ in range(2):
            flight = await bench.run()
            flight.close()
        assert len(d.requests) == 2
        assert set(bench.failures) == {"w0"}
        assert (bench.reservations, bench.double_releases) == (0, 0)


async def test_when_every_prefill_worker_fails_the_decode_worker_is_not_blamed_or_asked() -> None:
    async with running(status(500)) as p, running(DECODED) as d:
        bench = PairBench([p], [d])
        with pytest.raises(EngineError) as caught:
            await bench.run()
        assert caught.value.status == 500
        assert bench.failures == ["w0"]
        assert d.requests == []
        assert bench.reservations == 0


async def test_when_every_prefill_worker_fails_a_worker_that_does_both_takes_the_request() -> None:
    async with running(hang_up) as p, running() as d, running(DECODED) as a:
        bench = PairBench([p], [d])
        bench.add_aggregated(a, sequences=1)
        flight = await bench.run()
        flight.close()
        assert (len(p.requests), d.requests, len(a.requests)) == (1, [], 1)
        assert "kv_transfer_params" not in a.requests[0][1]
        assert bench.texts[-1].text == "1 2 3 "
        assert bench.failures == ["w0"]
        assert (bench.reservations, bench.double_releases) == (1, 0)


async def test_a_pair_that_fails_in_decode_is_followed_by_a_worker_that_does_both() -> None:
    async with running(prefilled()) as p, running(status(500)) as d, running(DECODED) as a:
        bench = PairBench([p], [d])
        bench.add_aggregated(a, sequences=1)
        flight = await bench.run()
        flight.close()
        assert flight.attempt.prefill is None
        assert "kv_transfer_params" not in a.requests[0][1]
        assert bench.texts[-1].text == "1 2 3 "
        assert bench.failures == ["w1", "w0"]


async def test_a_failed_decode_names_the_prefill_worker(caplog: pytest.LogCaptureFixture) -> None:
    async with running(prefilled()) as p, running(status(500)) as d:
        bench = PairBench([p], [d])
        with pytest.raises(EngineError):
            await bench.run()
    assert "request r failed on w1 after prefill on w0" in caplog.text


async def test_a_prefill_workers_refusal_is_the_clients_answer() -> None:
    async with (
        running(status(400, b'{"error":{"message":"bad"}}')) as p0,
        running(prefilled()) as p1,
        running(DECODED) as d,
    ):
        bench = PairBench([p0, p1], [d])
        outcomes = []
        for _ in range(2):
            try:
                flight = await bench.run()
                flight.close()
                outcomes.append(200)
            except EngineError as error:
                outcomes.append(error.status or 0)
        assert sorted(outcomes) == [200, 400]


async def test_a_decode_that_fails_before_output_gets_a_fresh_prefill_and_another_decode_worker() -> None:
    async with (
        running(prefilled(), prefilled()) as p,
        running(broken_stream()) as d0,
        running(broken_stream()) as d1,
    ):
        bench = PairBench([p], [d0, d1])
        with pytest.raises(EngineError):
            await bench.run()
        assert len(p.requests) == 2
        assert len(d0.requests) == len(d1.requests) == 1
        assert (bench.reservations, bench.double_releases) == (0, 0)


async def test_several_choices_do_not_share_a_handle() -> None:
    async with running(prefilled()) as p, running(DECODED) as d, running(DECODED) as both:
        bench = PairBench([p], [d])
        job = bench.job()
        job.choices = 2
        with pytest.raises(RequestError) as caught:
            await bench.flights.run(job, bench.generation)
        assert (caught.value.status, caught.value.param) == (400, "n")
        bench.engines["both"] = VllmEngine(both.url, "generate")
        bench.router.add_worker(WorkerInfo(worker="both", models=("m",)))
        flight = await bench.flights.run(job, bench.generation)
        flight.close()
        assert (len(p.requests), len(both.requests), bench.reservations) == (0, 1, 0)


async def test_without_a_prefill_worker_nothing_is_reserved() -> None:
    async with running(DECODED) as d:
        bench = PairBench([], [d])
        with pytest.raises(NoWorkerError):
            await bench.run()
        assert bench.reservations == 0


async def test_a_client_that_leaves_during_decode_releases_both_legs() -> None:
    async with running(prefilled()) as p, running(endless_stream(tokens(1))) as d:
        bench = PairBench([p], [d])
        flight = await bench.open()
        assert bench.reservations == 1
        flight.close()
        assert (bench.reservations, bench.double_releases) == (0, 0)
        await asyncio.wait_for(d.left.wait(), 5)


async def test_a_decode_worker_that_cannot_read_from_one_prefill_worker_reads_from_another() -> None:
    async with (
        running(prefilled()) as p0,
        running(prefilled()) as p1,
        running(status(500), DECODED) as d,
    ):
        bench = PairBench([p0, p1], [d])
        flight = await bench.run()
        flight.close()
        assert (len(p0.requests), len(p1.requests), len(d.requests)) == (1, 1, 2)
        assert set(bench.failures) - {"w2"} <= {"w0", "w1"}
        assert bench.texts[-1].text == "1 2 3 "
        assert (bench.reservations, bench.double_releases) == (0, 0)


async def test_the_only_pair_is_tried_once_more_with_a_new_handle() -> None:
    async with running(prefilled(), prefilled()) as p, running(status(500), DECODED) as d:
        bench = PairBench([p], [d])
        flight = await bench.run()
        flight.close()
        assert (len(p.requests), len(d.requests)) == (2, 2)


async def test_legs_that_fail_are_bounded_over_both_roles() -> None:
    failing = [status(500)] * 4
    async with (
        running(*failing) as p0,
        running(*[prefilled()] * 4) as p1,
        running(*failing) as d0,
        running(*failing) as d1,
    ):
        bench = PairBench([p0, p1], [d0, d1])
        with pytest.raises(EngineError):
            await bench.run()
        failed = sum(len(worker.requests) for worker in (p0, d0, d1))
        assert failed == MAX_FAILURES
        assert (bench.reservations, bench.double_releases) == (0, 0)


async def test_a_client_that_leaves_after_prefill_has_its_kv_cache_fetched() -> None:
    first = asyncio.Event()

    async def slow_decode(writer: asyncio.StreamWriter, body: bytes) -> None:
        await first.wait()
        await endless_stream(tokens(1))(writer, body)

    async with running(prefilled()) as p, running(slow_decode) as d:
        bench = PairBench([p], [d])
        task = asyncio.create_task(bench.open())
        await d.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (len(bench.reaper), bench.reservations) == (1, 1)
        first.set()
        await asyncio.wait_for(d.left.wait(), 5)  # at its first token
        await gone(bench)
        assert (bench.reaper.reaped, len(bench.reaper.orphans), bench.double_releases) == (1, 0, 0)


async def test_a_decode_worker_that_dies_with_the_handle_leaves_an_orphan_until_the_lease_ends() -> None:
    async with running(prefilled()) as p, running(hang_up) as d:
        bench = PairBench([p], [d], lease_seconds=0.3)
        with pytest.raises(EngineError):
            await bench.run()
        assert len(bench.reaper.orphans) == 1
        await asyncio.sleep(0.35)
        assert len(bench.reaper.orphans) == 0


async def test_a_handle_that_reached_nobody_is_fetched_by_another_decode_worker() -> None:
    async with running(*[prefilled()] * 4) as p, running() as d0, running(*[DECODED] * 4) as d1:
        bench = PairBench([p], [d0, d1])
        del bench.engines["w1"]
        for _ in range(2):
            flight = await bench.run()
            flight.close()
        await gone(bench)
        fetches = [body for _, body in d1.requests if body["sampling_params"].get("max_tokens") == 1]
        assert len(d1.requests) - len(fetches) == 2
        assert len(fetches) == bench.reaper.reaped >= 1
        assert (len(bench.reaper.orphans), bench.double_releases) == (0, 0)


async def test_a_decode_worker_never_gets_more_than_it_runs_at_once() -> None:
    busy = 0

    async def one_at_a_time(writer: asyncio.StreamWriter, body: bytes) -> None:
        nonlocal busy
        busy += 1
        assert busy == 1
        await asyncio.sleep(0.02)
        busy -= 1
        await DECODED(writer, body)

    async with running(*[prefilled()] * 5) as p, running(*[one_at_a_time] * 5) as d:
        bench = PairBench([p], [d])
        bench.router.add_worker(WorkerInfo(worker="w1", models=("m",), role="decode", max_num_seqs=1))

        async def ask() -> None:
            flight = await bench.run()
            flight.close()

        await asyncio.gather(*[ask() for _ in range(5)])
        assert len(d.requests) == 5
        assert (bench.reservations, bench.double_releases) == (0, 0)


async def gone(bench: Bench) -> None:
    """Until the reaper has nothing left."""
    async with asyncio.timeout(5):
        while len(bench.reaper) or bench.reservations:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


async def test_parameters_that_were_given_before_are_not_used_again() -> None:
    async with (
        running(*[prefilled(PARAMETERS)] * 2) as p0,
        running(prefilled()) as p1,
        running(*[DECODED] * 2) as d,
    ):
        bench = PairBench([p0, p1], [d])
        for _ in range(2):
            flight = await bench.run()
            flight.close()
        handles = [body["kv_transfer_params"]["remote_request_id"] for _, body in d.requests]
        assert len(set(handles)) == len(handles) == 2
