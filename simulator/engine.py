"""The simulated engine: one rank's scheduler, its cache and its clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from simulator.cache import Event, KVCache
from simulator.clock import Timing
from simulator.generation import Generation, Step
from simulator.hashing import Digest, chain, root_digest
from simulator.metrics import Counters
from simulator.scheduler import Batch, Job, Scheduler, decodes, prefill_tokens
from simulator.settings import SimulatorSettings

log = logging.getLogger(__name__)

LONG_PROMPT = 65_536
"""Prompts from here on are hashed in a thread, so that other streams keep their pace."""


class Outbox:
    """Steps on their way from the engine to one request."""

    def __init__(self) -> None:
        self._steps: list[Step | BaseException] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, step: Step | BaseException) -> None:
        """Add a step, or what ends the request."""
        self._steps.append(step)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Step | BaseException]:
        """All there is, at least one."""
        while not self._steps:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        steps, self._steps = self._steps, []
        return steps


class Engine:
    """Runs steps while there is work. `publish` receives each step's KV events once it is computed."""

    def __init__(self, settings: SimulatorSettings, publish: Callable[[list[Event]], None]) -> None:
        self.counters = Counters()
        self.cache = KVCache(
            settings.num_blocks,
            settings.block_size,
            root_digest(settings.hash_seed),
            settings.groups,
            settings.max_num_batched_tokens,
        )
        self._settings = settings
        self._timing = Timing(settings)
        self._publish = publish
        self._scheduler = Scheduler(self.cache, settings.max_num_seqs, settings.max_num_batched_tokens)
        self._outboxes: dict[Job, Outbox] = {}
        self._news = asyncio.Event()
        self._resets: list[tuple[bool, asyncio.Future[bool]]] = []
        self._loop: asyncio.Task[None] | None = None

    async def run(self, generations: list[Generation]) -> AsyncGenerator[Step, None]:
        """Steps of all the sequences as they come. Closing the iterator stops them and frees their blocks."""
        await self._hash(generations)
        outbox = Outbox()
        now = asyncio.get_running_loop().time()
        jobs = [Job(generation, self.cache, now) for generation in generations]
        for job in jobs:
            self._scheduler.add(job)
            self._outboxes[job] = outbox
        self.wake()
        try:
            left = len(jobs)
            while left:
                for step in await outbox.take():
                    if isinstance(step, BaseException):
                        raise step
                    left -= step.last
                    yield step
        finally:
            for job in jobs:
                self._outboxes.pop(job, None)
                self._scheduler.drop(job)
            self.wake()

    async def reset(self, *, preempt: bool = False) -> bool:
        """Forget every prefix; False while something runs, unless `preempt` makes it start anew."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._resets.append((preempt, done))
        self.wake()
        return await done

    async def _hash(self, generations: list[Generation]) -> None:
        known: dict[int, list[Digest]] = {}
        for generation in generations:
            ids = generation.token_ids
            if id(ids) not in known:
                args = (self.cache.root, ids, self._settings.block_size, generation.salt)
                long = len(ids) >= LONG_PROMPT
                known[id(ids)] = await asyncio.to_thread(chain, *args) if long else chain(*args)
            generation.digests = list(known[id(ids)])

    def wake(self) -> None:
        """Say that something changed, blocks given back for example. Steps run only while there is work."""
        self._count()
        self._news.set()
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._run_steps())

    async def _run_steps(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            end = loop.time()
            while self._scheduler.busy or self._resets:
                self._do_resets()
                batch = self._scheduler.plan(loop.time())
                self._count()
                if not batch.shares:
                    await self._idle(batch)
                    end = loop.time()
                    continue
                seconds = self._seconds(batch)
                # A late wake-up shortens the next step, but debts do not pile up.
                end = max(end, loop.time() - seconds) + seconds
                await asyncio.sleep(max(0.0, end - loop.time()))
                self._finish(batch)
        except Exception as error:
            log.exception("the engine failed")
            for outbox in self._outboxes.values():
                outbox.put(error)

    async def _idle(self, batch: Batch) -> None:
        """Wait until a job with a pace of its own is due, or until something changes."""
        self.counters.preemptions += len(batch.preempted)
        if batch.preempted or not self._scheduler.busy:
            return
        self._news.clear()
        now = asyncio.get_running_loop().time()
        due = self._scheduler.next_due(now)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), None if due is None else due - now)

    def _seconds(self, batch: Batch) -> float:
        prompt = self._timing.prefill(prefill_tokens(batch.shares))
        return prompt + (self._timing.decode_step if decodes(batch.shares) else 0.0)

    def _finish(self, batch: Batch) -> None:
        self.counters.preemptions += len(batch.preempted)
        self._publish(self.cache.take_events())
        now = asyncio.get_running_loop().time()
        for job, step in self._scheduler.finish(batch):
            self.counters.stepped(job, step, now)
            self._outboxes[job].put(step)
        self._count()

    def _do_resets(self) -> None:
        for preempt, done in self._resets:
            if not done.done():
                done.set_result(self._scheduler.reset(preempt=preempt))
        self._resets.clear()

    def _count(self) -> None:
        self.counters.running = len(self._scheduler.running)
        self.counters.waiting = len(self._scheduler.waiting)
