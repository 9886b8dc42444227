"""Pairs are made of workers that fit, and rather of those with a good link between them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import WorkerSettings
from gateway.fleet.worker import Profile, Worker
from gateway.handoff.fabric import FabricPool
from parsers.base import KvShape
from router.messages import NoWorkerError, Role, WorkerInfo
from router.selector import Router
from tests.gateway.raw_worker import RawWorker, running
from tests.gateway.serving.test_pairs import DECODED, PairBench, prefilled


class FabricBench(PairBench):
    """Its fabric knows the workers: version and labels of each, prefill workers first."""

    def __init__(
        self, prefill: list[RawWorker], decode: list[RawWorker], versions: list[str], labels: list[Any]
    ) -> None:
        super().__init__(prefill, decode)
        for number, (version, own) in enumerate(zip(versions, labels, strict=True)):
            role: Role = "prefill" if number < len(prefill) else "decode"
            worker = Worker(WorkerSettings(url="http://h:1", name=f"w{number}", role=role, labels=own))
            worker.profile = Profile(
                models=("m",), context_length=None, endpoint="generate", engine="vllm", version=version
            )
            self.fabric.joined(worker)


async def served(bench: FabricBench, times: int) -> None:
    for _ in range(times):
        flight = await bench.run()
        flight.close()
    assert (bench.reservations, bench.double_releases, bench.failures) == (0, 0, [])


async def test_a_prefill_worker_that_does_not_fit_is_never_asked() -> None:
    async with running(*[prefilled()] * 4) as p, running() as other, running(*[DECODED] * 4) as d:
        bench = FabricBench([p, other], [d], ["1", "2", "1"], [{}, {}, {}])
        await served(bench, 4)
        assert (len(p.requests), len(other.requests)) == (4, 0)


async def test_a_decode_worker_without_a_partner_is_never_asked() -> None:
    async with running(*[prefilled()] * 4) as p, running(*[DECODED] * 4) as d, running() as other:
        bench = FabricBench([p], [d, other], ["1", "1", "2"], [{}, {}, {}])
        await served(bench, 4)
        assert len(other.requests) == 0


async def test_without_a_possible_pair_nothing_is_served_and_nothing_reserved() -> None:
    async with running() as p, running() as d:
        bench = FabricBench([p], [d], ["1", "2"], [{}, {}])
        with pytest.raises(NoWorkerError, match="never a pair: w0 and w1: version"):
            await bench.run()
        assert bench.reservations == 0


async def test_without_a_possible_pair_a_worker_that_does_both_is_used() -> None:
    async with running() as p, running() as d, running(DECODED) as both:
        bench = FabricBench([p], [d], ["1", "2"], [{}, {}])
        bench.add_aggregated(both, sequences=50)
        flight = await bench.run()
        flight.close()
        assert bench.texts[-1].text == "1 2 3 "


async def test_the_better_link_is_taken_for_both_legs() -> None:
    near = {"host": "a", "nvlink": "true"}
    async with (
        running(*[prefilled()] * 4) as p0,
        running() as p1,
        running() as d0,
        running(*[DECODED] * 4) as d1,
    ):
        bench = FabricBench([p1, p0], [d0, d1], ["1"] * 4, [{"host": "b"}, near, {"host": "c"}, near])
        # Much to move, so that no delay of this machine makes the poor links look quicker.
        bench.fabric._pools = {"": FabricPool(shape=KvShape(1e9, 1))}
        bench.router = Router("kv", seed=1)
        for name in bench.engines:
            role: Role = "prefill" if name in ("w0", "w1") else "decode"
            bench.router.add_worker(WorkerInfo(worker=name, models=("m",), role=role))
        bench.flights = bench.flights_with(bench.handoff)
        await served(bench, 4)
        assert (len(p0.requests), len(d1.requests)) == (4, 4)


async def test_the_time_to_decodes_first_token_is_learned() -> None:
    async with running(prefilled()) as p, running(DECODED) as d:
        bench = FabricBench([p], [d], ["1", "1"], [{}, {}])
        await served(bench, 1)
        assert bench.fabric.describe()[0]["rest_seconds"] >= 0
        assert bench.fabric._partners["w1"]["w0"].seen == 1


@pytest.mark.parametrize(("seconds", "by_the_pair"), [(0.001, 1), (5.0, 0)])
async def test_a_slow_handoff_moves_requests_to_a_worker_that_does_both(
    seconds: float, by_the_pair: int
) -> None:
    async with running(prefilled()) as p, running(DECODED) as d, running(DECODED) as both:
        bench = FabricBench([p], [d], ["1", "1"], [{}, {}])
        bench.add_aggregated(both, sequences=50)  # the pair costs less, but for the way between its workers
        bench.fabric.handed_over("w0", "w1", 3, seconds)
        (await bench.run()).close()
        assert (len(d.requests), len(both.requests)) == (by_the_pair, 1 - by_the_pair)
