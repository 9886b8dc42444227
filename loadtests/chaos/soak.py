"""A fleet under load whose workers are killed and frozen: is every answer right, does anything grow?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtests.chaos.client import Answer, Client
from loadtests.chaos.fleet import Fleet, Gateway, Seat, SimWorker, until

SEATS = (Seat("p0", "prefill"), Seat("d0", "decode"), Seat("d1", "decode"))
TURNS = (("d0", "kill"), ("d1", "freeze"), ("p0", "kill"), ("d1", "kill"), ("d0", "freeze"), ("p0", "freeze"))
AWAY_SECONDS = {"kill": 1.0, "freeze": 8.0}
"""Until the worker is started again, or thawed."""
PROMPTS = 96
WARM_SHARE = 0.2
"""Of the time, after which memory and files are expected to stay as they are."""
SAMPLE_SECONDS = 2.0
MOST_GROWTH = 0.05
LEAST_CONTINUED = 0.95

WORKERS = {
    "num_blocks": 1500,
    "decode_seconds_per_step": 0.03,
    "prefill_seconds_per_token": 1e-5,
    "kv_lease_seconds": 10,
    "handshake_seconds": 2,
}
GATEWAY = {
    "kv_lease_seconds": 10,
    "health_seconds": 0.5,
    "health_timeout_seconds": 2,
    "log_level": "info",
    "policy": "least_loaded",
}


class Report(msgspec.Struct):
    """What came of it; shares are of 1."""

    requests: int = 0
    right: int = 0
    wrong: int = 0
    clear_errors: int = 0
    unclear: int = 0
    """Neither an answer nor an error that says what is wrong."""
    broken_off: int = 0
    """Answers whose worker died or froze after output had gone out."""
    continued_right: int = 0
    """Of these, those that ended right."""
    deaths: int = 0
    kv_violations: int = 0
    memory_growth: float = 0.0
    """Of the gateway's resident memory after warm-up: the medians of the last and the first tenth."""
    files_growth: int = 0
    """Of its open descriptors, likewise."""
    examples: list[str] = []

    @property
    def continued_share(self) -> float:
        return self.continued_right / self.broken_off if self.broken_off else 1.0

    @property
    def holds(self) -> bool:
        return (
            self.wrong == self.unclear == self.kv_violations == 0
            and self.right > 0
            and self.continued_share >= LEAST_CONTINUED
            and self.memory_growth < MOST_GROWTH
            and self.files_growth <= 16
        )


class Soak:
    """One run."""

    def __init__(self, folder: Path, concurrent: int, every_seconds: float, transport: str) -> None:
        self._fleet = Fleet(folder, SEATS, {**WORKERS, "transport": transport})
        self._gateway = self._fleet.add_gateway("gateway", GATEWAY)
        self._client = Client(self._gateway.url, seconds=90.0)
        self._concurrent = concurrent
        self._every = every_seconds
        self._rights: dict[str, Answer] = {}
        self._answers: list[tuple[str, Answer]] = []
        self._memory: list[int] = []
        self._files: list[int] = []
        self._report = Report()

    async def run(self, seconds: float) -> Report:
        try:
            await self._fleet.start()
            await self._learn()
            await self._load(seconds)
            await self._quiet()
            return self._summary()
        finally:
            self._fleet.stop()

    async def _learn(self) -> None:
        """What each prompt is answered with by a fleet that nothing is done to."""
        prompts = [
            f"{number:03d} 🌍 東京 " + f"{number * 7919} " * (10 + number) for number in range(PROMPTS)
        ]
        answers = await asyncio.gather(*[self._client.chat(prompt) for prompt in prompts])
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.error is None, answer
            self._rights[prompt] = answer

    async def _load(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        helpers = [asyncio.create_task(work) for work in (self._harm(), self._sample())]
        await asyncio.gather(*[self._user(number, end) for number in range(self._concurrent)])
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)

    async def _user(self, number: int, end: float) -> None:
        loop, prompts, turn = asyncio.get_running_loop(), list(self._rights), number
        while loop.time() < end:
            prompt = prompts[turn % len(prompts)]
            turn += self._concurrent + 1
            answer = await self._client.chat(prompt)
            self._answers.append((prompt, answer))
            if answer.error is not None:
                await asyncio.sleep(0.5)

    async def _harm(self) -> None:
        while True:
            for name, what in TURNS:
                await asyncio.sleep(self._every)
                await self._strike(self._fleet.workers[name], what)

    async def _strike(self, worker: SimWorker, what: str) -> None:
        self._report.deaths += 1
        if what == "freeze":
            worker.freeze()
            await asyncio.sleep(AWAY_SECONDS[what])
            worker.thaw()
            return
        state = await worker.state()
        self._report.kv_violations += state.get("sim_kv_violations", 0)
        worker.kill()
        await asyncio.sleep(AWAY_SECONDS[what])
        worker.start()

    async def _sample(self) -> None:
        while True:
            self._memory.append(self._gateway.resident_bytes)
            self._files.append(self._gateway.open_files)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _quiet(self) -> None:
        """Everybody is back, and nothing is left of what is over."""
        await self._fleet.whole()
        for name in ("router_reservations", "queued_requests", "reaping_requests"):

            async def is_zero(name: str = name) -> bool:
                return await self._gateway.metric(name) == 0

            await until(is_zero, f"{name} is 0")
        for worker in self._fleet.workers.values():
            self._report.kv_violations += (await worker.state())["sim_kv_violations"]

    def _summary(self) -> Report:
        report = self._report
        broken = _broken_off(self._gateway)
        for prompt, answer in self._answers:
            report.requests += 1
            right = answer.error is None and not answer.faults and answer.said == self._rights[prompt].said
            report.right += right
            if answer.request_id in broken:
                report.broken_off += 1
                report.continued_right += right
            if not right:
                kind = _kind(answer)
                setattr(report, kind, getattr(report, kind) + 1)
                if kind != "clear_errors" and len(report.examples) < 5:
                    report.examples.append(repr(answer)[:600])
        warm = int(len(self._memory) * WARM_SHARE)
        first, last = _ends(self._memory[warm:])
        report.memory_growth = round(last / first - 1, 4)
        first, last = _ends(self._files[warm:])
        report.files_growth = int(last - first)
        return report


def _kind(answer: Answer) -> str:
    if answer.is_clear_error:
        return "clear_errors"
    return "unclear" if answer.error is not None or answer.faults else "wrong"


def _broken_off(gateway: Gateway) -> set[str]:
    """Ids of the answers that were continued, or were to be, from the gateway's log."""
    log = gateway.child.log.read_text(errors="replace")
    return {found[2] for found in re.finditer(r"(request|stream) (\w+) (?:goes on after|broke)", log)}


def _ends(samples: Sequence[int]) -> tuple[float, float]:
    """Medians of the first and of the last tenth."""
    size = max(1, len(samples) // 10)
    return sorted(samples[:size])[size // 2], sorted(samples[-size:])[size // 2]
