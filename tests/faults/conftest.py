"""Real processes that are killed, frozen, cut off and slowed down; after each fault nothing may be left.

One fleet serves all tests: two prefill and two decode workers (model `pair`), two that do both (`both`).
What a fault has damaged is repaired before the next test. Two gateways stand in front: `quick` looks at its
workers often, `calm` as seldom as by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadtests.chaos.client import Answer, Client
from loadtests.chaos.fleet import Fleet, Gateway, Seat, SimWorker, until

LEASE_SECONDS = 2.5
WORKERS = {
    "transport": "inline",
    "num_blocks": 2048,
    "kv_bytes_per_token": 64,
    "kv_lease_seconds": LEASE_SECONDS,
    "handshake_seconds": 1.0,
    "decode_seconds_per_step": 0.004,
    "prefill_seconds_per_token": 2e-5,
    "keep_alive_seconds": 60,
}
GATEWAY = {"kv_lease_seconds": LEASE_SECONDS, "queue_seconds": 20, "continuation_limit": 2}
QUICK = {"health_seconds": 0.3, "health_timeout_seconds": 0.5}
SEATS = (
    Seat("p0", "prefill", "pair"),
    Seat("p1", "prefill", "pair"),
    Seat("d0", "decode", "pair"),
    Seat("d1", "decode", "pair"),
    Seat("a0", "aggregated", "both", {"transport": "none"}),
    Seat("a1", "aggregated", "both", {"transport": "none"}),
)
WELL = {"die": None, "freeze_seconds": None, "slow_link": None, "refuse_count": 0, "stale_parameters": 0}
COUNTS = ("in_flight_requests", "router_reservations", "queued_requests", "reaping_requests", "body_bytes")


def assert_right(answer: Answer, right: Answer) -> None:
    """Nothing of it is lost, repeated or changed."""
    assert (answer.error, answer.faults) == (None, []), answer
    assert answer.said == right.said


class Bench:
    """The fleet, as tests use it."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(folder, SEATS, WORKERS)
        self.quick = self.fleet.add_gateway("quick", GATEWAY | QUICK)
        self.calm = self.fleet.add_gateway("calm", GATEWAY)
        self.tasks: dict[str, float] = {}
        self.files: dict[str, int] = {}
        self.expired: dict[str, int] = {}
        self._prompts = 0

    def __getitem__(self, name: str) -> SimWorker:
        return self.fleet.workers[name]

    def prompt(self, about: str = "") -> str:
        """One that nobody has seen, some blocks long."""
        self._prompts += 1
        return f"{self._prompts:04d} {about} 🌍 東京 écoles " + f"{self._prompts * 7919} " * 40

    def ask(
        self, text: str, model: str = "pair", gateway: Gateway | None = None, **fields: Any
    ) -> asyncio.Task[Answer]:
        client = Client((gateway or self.quick).url)
        return asyncio.create_task(client.chat(text, model=model, **fields))

    async def right(self, text: str, model: str, **fields: Any) -> Answer:
        """What the other kind of workers says, so that the prompt stays new to those in the test."""
        answer = await self.ask(text, "both" if model == "pair" else "pair", self.calm, **fields)
        assert (answer.error, answer.faults) == (None, []), answer
        return answer

    async def assert_right(
        self,
        asked: Sequence[tuple[str, dict[str, Any]]],
        model: str,
        dies_after: int | None = None,
        apart_seconds: float = 0.0,
    ) -> None:
        """Ask all of it of the quick gateway at once, or some time apart, and compare.

        The worker that answers the first dies after so many tokens of all its answers.
        """
        rights = [await self.right(text, model, **fields) for text, fields in asked[:1]]
        others = asyncio.gather(*[self.right(text, model, **fields) for text, fields in asked[1:]])
        asking = []
        victim = None
        for text, fields in asked:
            asking.append(self.ask(text, model, **fields))
            if victim is None and dies_after is not None:
                victim = await self.doom(model, dies_after)
            await asyncio.sleep(apart_seconds)
        for answer, right in zip(await asyncio.gather(*asking), rights + await others, strict=True):
            assert_right(answer, right)
        assert victim is None or not self[victim].child.alive

    async def doom(self, model: str, tokens: int) -> str:
        """The worker that writes an answer dies after so many tokens more."""
        name = await self.used(*(("d0", "d1") if model == "pair" else ("a0", "a1")))
        await self[name].fault(die="after_tokens", tokens=tokens)
        return name

    async def used(self, *names: str) -> str:
        """The worker among `names` that runs something."""

        async def running() -> str | None:
            for name in names:
                if (await self[name].state()).get("running"):
                    return name
            return None

        found: list[str] = []

        async def check() -> bool:
            name = await running()
            found[:] = [name] if name else []
            return bool(found)

        await until(check, f"one of {names} runs a request")
        return found[0]

    async def is_gone(self, name: str) -> bool:
        """The quick gateway has taken the worker out."""
        return name not in await self.quick.ready_workers()

    async def begin(self) -> None:
        """Everybody is there and well; leases that had run out before are noted."""
        await self.fleet.whole()
        for worker in self.fleet.workers.values():
            await worker.fault(**WELL)
        for name in ("p0", "p1"):
            self.expired[name] = (await self[name].state())["expired_requests"]

    async def start(self) -> None:
        await self.fleet.start()
        for model in ("pair", "both"):
            for gateway in (self.quick, self.calm):
                await asyncio.gather(*[self.ask(self.prompt(), model, gateway) for _ in range(4)])
        await asyncio.sleep(0.3)
        for gateway in (self.quick, self.calm):
            self.tasks[gateway.name] = await gateway.metric("tasks")
            self.files[gateway.name] = gateway.open_files

    async def assert_nothing_left(self) -> None:
        """No reservation, task, connection or pinned block of what is over; no wrong block anywhere."""
        for gateway in (self.quick, self.calm):
            assert gateway.child.alive, gateway.child.tail()
            for name in COUNTS:
                await until(partial(_is_zero, gateway, name), f"{gateway.name}: {name} is 0")
        for worker in self.fleet.workers.values():
            await until(partial(_idle, worker), f"{worker.name} runs and keeps nothing", LEASE_SECONDS + 5)
            state = await worker.state()
            assert state["sim_kv_violations"] == 0, worker.name
        for gateway in (self.quick, self.calm):
            await until(partial(self._few_tasks, gateway), f"{gateway.name}: tasks are as before", 10)
            # The pools keep idle connections, of which a burst leaves more behind.
            assert gateway.open_files <= self.files[gateway.name] + 60
            assert await gateway.metric("router_ignored_releases") == 0

    async def _few_tasks(self, gateway: Gateway) -> bool:
        return await gateway.metric("tasks") <= self.tasks[gateway.name]


async def _is_zero(gateway: Gateway, name: str) -> bool:
    """But for the request that asks."""
    return await gateway.metric(name) == (name == "in_flight_requests")


async def _idle(worker: SimWorker) -> bool:
    state = await worker.state()
    return bool(state) and not (state["running"] or state["waiting"] or state.get("pinned_requests", 0))


@pytest.fixture(scope="session")
def session_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("faults"))
    try:
        asyncio.run(bench.start())
        yield bench
    finally:
        bench.fleet.stop()


@pytest.fixture
async def bench(session_bench: Bench) -> AsyncIterator[Bench]:
    """Whole before the test, and without a trace of it afterwards."""
    await session_bench.begin()
    yield session_bench
    await session_bench.fleet.whole()
    await session_bench.assert_nothing_left()
