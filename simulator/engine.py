"""The simulated engine: one rank's scheduler, its cache and its clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from simulator import errors
from simulator.cache import Event, KVCache
from simulator.clock import Timing
from simulator.errors import ApiError
from simulator.faults import Faults
from simulator.generation import Generation, Step
from simulator.handoff import Handoff
from simulator.hashing import Digest, chain, root_digest
from simulator.kv.arena import Arena
from simulator.kv.memory import Memory
from simulator.kv.transport import TransferError
from simulator.legs import fetch, readable
from simulator.metrics import Counters
from simulator.output import Plan
from simulator.scheduler import Batch, Job, Scheduler, decodes, prefill_tokens
from simulator.settings import SimulatorSettings

log = logging.getLogger(__name__)

LONG_PROMPT = 65_536
"""Prompts from here on are hashed in a thread, so that other streams keep their pace."""


class Outbox:
    """Steps on their way from the engine to one request."""

    def __init__(self) -> None:
        self._steps: list[Step | ApiError] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, step: Step | ApiError) -> None:
        """Add a step, or what ends the request."""
        self._steps.append(step)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Step | ApiError]:
        """All there is, at least one."""
        while not self._steps:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        steps, self._steps = self._steps, []
        return steps


class Engine:
    """Runs steps while there is work. `publish` receives each step's KV events once it is computed."""

    def __init__(
        self, settings: SimulatorSettings, publish: Callable[[list[Event]], None], faults: Faults
    ) -> None:
        self.counters = Counters(settings.context_length)
        self.cache = KVCache(
            settings.num_blocks,
            settings.block_size,
            root_digest(settings.hash_seed),
            settings.groups,
            settings.max_num_batched_tokens,
        )
        self.memory = Memory(Arena(settings.num_blocks, settings.block_size, settings.kv_slot_bytes))
        self.handoff: Handoff | None = None
        """Set before the first request by whoever wants legs of disaggregated requests taken."""
        self._dead = False
        self._fetches: set[asyncio.Task[None]] = set()
        self._settings = settings
        self._timing = Timing(settings)
        self._publish = publish
        self._faults = faults
        self._scheduler = Scheduler(self.cache, settings.max_num_seqs, settings.max_num_batched_tokens)
        self._outboxes: dict[Job, Outbox] = {}
        self._news = asyncio.Event()
        self._resets: list[tuple[bool, asyncio.Future[bool]]] = []
        self._loop: asyncio.Task[None] | None = None

    async def run(self, generations: list[Generation]) -> AsyncGenerator[Step, None]:
        """Steps of all the sequences as they come. Closing the iterator stops them and frees their blocks."""
        if self._dead:
            raise errors.engine_dead()
        await self._hash(generations)
        outbox = Outbox()
        now = asyncio.get_running_loop().time()
        jobs = [Job(generation, self.cache, now) for generation in generations]
        for job in jobs:
            self._scheduler.add(job)
            self._outboxes[job] = outbox
            self._watch(job)
        self.wake()
        try:
            left = len(jobs)
            while left:
                for step in await outbox.take():
                    if isinstance(step, ApiError):
                        raise step
                    left -= step.last
                    yield step
        finally:
            for job in jobs:
                self._outboxes.pop(job, None)
                self._leave(job)
            self.wake()

    def abort(self, generations: list[Generation]) -> None:
        """End generations where they are, with the reason "abort"."""
        wanted = set(map(id, generations))
        for job, outbox in self._outboxes.items():
            if id(job.generation) in wanted and not job.gone:
                self._scheduler.drop(job)
                job.generation.plan = Plan(job.generation.plan.ids[: job.said], "abort", None)
                outbox.put(Step(job.generation, job.said, [], True))
        self.wake()

    async def reset(self, *, preempt: bool = False) -> bool:
        """Forget every prefix; False while something runs, unless `preempt` makes it start anew."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._resets.append((preempt, done))
        self.wake()
        return await done

    def die(self) -> None:
        """Fail what is in flight and whatever comes."""
        self._dead = True
        for outbox in self._outboxes.values():
            outbox.put(errors.engine_dead())

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
                now = loop.time()
                batch = self._scheduler.plan(now)
                self.memory.write(batch)
                for job in batch.fetches:
                    self._start_fetch(job)
                self._count()
                if not batch.shares:
                    await self._idle(batch, now)
                    end = loop.time()
                    continue
                seconds = self._timing.step(prefill_tokens(batch.shares), decodes(batch.shares))
                # A late wake-up shortens the next step, but debts do not pile up.
                end = max(end, loop.time() - seconds) + seconds
                await asyncio.sleep(max(0.0, end - loop.time()))
                await self._faults.thawed()
                self._finish(batch)
        except Exception:
            log.exception("the engine failed")
            for outbox in self._outboxes.values():
                outbox.put(errors.internal())

    async def _idle(self, batch: Batch, now: float) -> None:
        """Wait until a job is due that was not at `now`, when the batch was planned, or something changes."""
        self.counters.computed(batch)
        if batch.preempted or not self._scheduler.busy:
            return
        self._news.clear()
        due = self._scheduler.next_due(now)
        left = None if due is None else max(due - asyncio.get_running_loop().time(), 0.0)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), left)

    def _finish(self, batch: Batch) -> None:
        self.counters.computed(batch)
        self._publish(self.cache.take_events())
        now = asyncio.get_running_loop().time()
        self.memory.read(batch)
        for job, step in self._scheduler.finish(batch):
            self._faults.produced(len(step.ids))
            if step.last:
                self._keep(job)
            self.counters.stepped(job, step, now)
            self._outboxes[job].put(step)
        self._count()

    def _watch(self, job: Job) -> None:
        leg = job.generation.leg
        if leg is not None and leg.remote is not None and self.handoff is not None:
            self.handoff.watch(leg.remote)

    def _leave(self, job: Job) -> None:
        """A job ends, one way or the other; a peer is told when nobody will come for its blocks."""
        leg = job.generation.leg
        if leg is not None and leg.remote is not None and self.handoff is not None:
            self.handoff.unwatch(leg.remote)
            if not job.fetched and job not in self._scheduler.fetching:
                self.handoff.abandon(leg.remote)
        self._scheduler.drop(job)

    def _start_fetch(self, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(self._fetch(job))
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    async def _fetch(self, job: Job) -> None:
        leg = job.generation.leg
        assert leg is not None
        assert leg.remote is not None
        assert self.handoff is not None
        complete = True
        try:
            await fetch(job, leg.remote, self.handoff, self.memory.arena)
            known = leg.remote.cached_tokens
            job.generation.cached_tokens = job.remote_tokens if known is None else known
        except TransferError:
            complete = False
            self.handoff.stats.failed_transfers += 1
        self.handoff.unwatch(leg.remote)
        self._scheduler.arrived(job, complete=complete)
        self.counters.external_tokens += job.given_tokens
        if not complete and self._settings.kv_load_failure_policy == "fail" and not job.gone:
            self.counters.finishes["error"] += 1
            self._scheduler.drop(job)
            self._outboxes[job].put(errors.internal())
        self.wake()

    def _keep(self, job: Job) -> None:
        """A prefill leg has ended: its blocks stay until a peer has read them or their lease runs out."""
        leg, sequence = job.generation.leg, job.sequence
        if leg is None or not leg.keeps or self.handoff is None:
            return
        assert job.context is not None
        job.context.compute(sequence.token_ids, sequence.computed)

        def release() -> None:
            sequence.free()
            self.wake()

        blocks = readable(sequence.tables, sequence.computed)
        self.handoff.leases.pin(leg.request_id, sum(map(len, blocks)), release)
        generation = job.generation
        at_once = len(generation.plan.ids) <= generation.tokens_per_step
        leg.answer = self.handoff.answer(
            leg.request_id, blocks, sequence.computed, generation.cached_tokens if at_once else None
        )

    def _do_resets(self) -> None:
        for preempt, done in self._resets:
            if not done.done():
                done.set_result(self._scheduler.reset(preempt=preempt))
        self._resets.clear()

    def _count(self) -> None:
        self.counters.running = len(self._scheduler.running)
        self.counters.waiting = self._scheduler.queued
