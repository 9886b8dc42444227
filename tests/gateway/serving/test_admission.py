"""Who waits for a full worker, in which order, for how long, and what is left when the client goes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gateway.serving.admission import Admission
from gateway.serving.errors import RequestError
from gateway.serving.flight import Flight
from gateway.serving.job import Job
from router.messages import WorkerInfo
from tests.gateway.raw_worker import Answer, endless_stream, tokens
from tests.gateway.serving.test_dispatch import OK, Bench, contexts

RUNNING = endless_stream(tokens(1))


def full(bench: Bench, limit: int = 10, seconds: float = 5.0, sequences: int = 1) -> Admission:
    """The bench's first worker runs that many at once; the line is new."""
    bench.router.add_worker(WorkerInfo(worker="w0", models=("m",), max_num_seqs=sequences))
    admission = Admission(limit, seconds)
    bench.flights.dispatcher.admission = admission
    return admission


async def open_(bench: Bench, job: Job | None = None) -> Flight:
    return await bench.flights.open(job or bench.job(), bench.generation)


async def queued(admission: Admission, count: int) -> None:
    async with asyncio.timeout(5):
        while len(admission) != count:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)


async def test_a_request_waits_for_a_full_worker_and_goes_when_there_is_room() -> None:
    async with contexts([RUNNING, OK]) as bench:
        admission = full(bench)
        first = await open_(bench)
        waiting = asyncio.create_task(open_(bench))
        await queued(admission, 1)
        assert len(bench.workers[0].requests) == 1
        first.close()
        second = await waiting
        await second.wait()
        second.close()
        assert (len(admission), admission.waited, bench.reservations) == (0, 1, 0)


async def test_they_go_by_priority_then_by_deadline_then_by_age() -> None:
    async with contexts([RUNNING] * 5) as bench:
        admission = full(bench)
        first = await open_(bench)
        order: list[str] = []

        async def ask(name: str, priority: int = 0, patience: float | None = None) -> None:
            job = msgspec.structs.replace(bench.job(), priority=priority, patience=lambda: patience)
            flight = await open_(bench, job)
            order.append(name)
            flight.close()

        tasks = []
        for number, (name, priority, patience) in enumerate(
            [("old", 0, None), ("impatient", 0, 2.0), ("urgent", -1, None), ("young", 0, None)]
        ):
            tasks.append(asyncio.create_task(ask(name, priority, patience)))
            await queued(admission, number + 1)
        first.close()
        await asyncio.gather(*tasks)
    assert order == ["urgent", "impatient", "old", "young"]


async def test_a_client_that_leaves_leaves_the_line_at_once() -> None:
    async with contexts([RUNNING]) as bench:
        admission = full(bench)
        first = await open_(bench)
        waiting = asyncio.create_task(open_(bench))
        await queued(admission, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(admission) == 0
        first.close()
        assert bench.reservations == 0


async def test_a_place_that_comes_in_the_moment_of_leaving_is_given_back() -> None:
    async with contexts([RUNNING, OK]) as bench:
        admission = full(bench)
        first = await open_(bench)
        waiting = asyncio.create_task(open_(bench))
        await queued(admission, 1)
        first.close()
        assert bench.reservations == 1  # It has the place and does not know it yet.
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (bench.reservations, bench.double_releases) == (0, 0)


async def refused(task: asyncio.Task[Flight]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await task
    assert int(caught.value.headers["Retry-After"]) > 0
    return caught.value


async def test_a_line_that_is_full_refuses_whoever_is_last_in_order() -> None:
    async with contexts([RUNNING, OK]) as bench:
        admission = full(bench, limit=1)
        first = await open_(bench)
        waiting = asyncio.create_task(open_(bench))
        await queued(admission, 1)
        error = await refused(asyncio.create_task(open_(bench)))
        assert (error.status, error.code) == (429, "queue_full")
        urgent = asyncio.create_task(open_(bench, msgspec.structs.replace(bench.job(), priority=-1)))
        error = await refused(waiting)
        first.close()
        (await urgent).close()
        assert (admission.refused, bench.reservations) == (2, 0)


async def test_whoever_waits_too_long_is_told_so() -> None:
    async with contexts([RUNNING]) as bench:
        full(bench, seconds=0.05)
        first = await open_(bench)
        error = await refused(asyncio.create_task(open_(bench)))
        assert (error.status, error.code) == (503, "queue_timeout")
        first.close()


async def test_a_worker_that_comes_serves_those_who_wait() -> None:
    async with contexts([RUNNING], [OK]) as bench:
        bench.router.remove_worker("w1")
        admission = full(bench)
        first = await open_(bench)
        waiting = asyncio.create_task(open_(bench))
        await queued(admission, 1)
        bench.router.add_worker(WorkerInfo(worker="w1", models=("m",)))
        (await waiting).close()
        first.close()
        assert len(bench.workers[1].requests) == 1


async def test_when_the_last_worker_goes_those_who_wait_are_told() -> None:
    async with contexts([RUNNING]) as bench:
        admission = full(bench)
        first = await open_(bench)
        waiting = asyncio.create_task(open_(bench))
        await queued(admission, 1)
        bench.router.remove_worker("w0")
        with pytest.raises(Exception, match="no workers"):
            await waiting
        first.close()
        assert bench.reservations == 0


@pytest.mark.parametrize("sequences", [1, 3])
async def test_a_burst_never_exceeds_what_a_worker_runs(sequences: int) -> None:
    busy = most = 0

    def counting() -> Answer:
        async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.005)
            busy -= 1
            await OK(writer, body)

        return answer

    async with contexts([counting() for _ in range(20)]) as bench:
        full(bench, limit=20, sequences=sequences)

        async def ask() -> None:
            flight = await bench.flights.run(bench.job(), bench.generation)
            flight.close()

        await asyncio.gather(*[ask() for _ in range(20)])
        assert most == sequences
        assert (bench.reservations, bench.double_releases) == (0, 0)
