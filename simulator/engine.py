"""The simulated engine: a waiting queue, one prefill at a time, decoding side by side.

Being rewritten right now (hybrid groups, preemption, ranks) into a scheduler of steps with the same surface:
`run`, `reset`, `cache`, `counters`; a step's duration will be one call to `clock.Timing`. Hook in after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from simulator.cache import Event, KVCache, KVSequence
from simulator.clock import Pace, Timing
from simulator.hashing import Digest, chain, root_digest
from simulator.metrics import Counters
from simulator.output import Plan
from simulator.settings import SimulatorSettings

LONG_PROMPT = 65_536
"""Prompts from here on are hashed in a thread, so that other streams keep their pace."""


class Generation(msgspec.Struct, kw_only=True):
    """One sequence to produce; `cached_tokens` is known once the first step is out."""

    index: int
    token_ids: Sequence[int]
    plan: Plan
    tokens_per_step: int
    step_seconds: float | None = None
    """Seconds before each step, the first included; None is the timing model."""
    salt: str | None = None
    digests: list[Digest] = []
    cached_tokens: int = 0


class Step(msgspec.Struct, frozen=True):
    """Tokens that came out together; `last` ends its sequence."""

    generation: Generation
    start: int
    ids: list[int]
    last: bool


class Engine:
    """Owns the cache and the clock. `publish` receives each step's KV events."""

    def __init__(self, settings: SimulatorSettings, publish: Callable[[list[Event]], None]) -> None:
        self.counters = Counters()
        self._settings = settings
        self._timing = Timing(settings)
        self._publish = publish
        self._root = root_digest(settings.hash_seed)
        self.cache = KVCache(settings.num_blocks, settings.block_size, self._root)
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    async def run(self, generations: list[Generation]) -> AsyncGenerator[Step, None]:
        """Steps of all the sequences as they come. Closing the iterator stops them and frees their blocks."""
        await self._hash(generations)
        only = generations[0] if len(generations) == 1 else None
        async with aclosing(self._run_one(only) if only else self._run_many(generations)) as steps:
            async for step in steps:
                yield step

    def reset(self) -> bool:
        """Forget every prefix; False while something runs."""
        return self.counters.running == 0 and self.cache.clear()

    async def _hash(self, generations: list[Generation]) -> None:
        known: dict[int, list[Digest]] = {}
        for generation in generations:
            ids = generation.token_ids
            if id(ids) not in known:
                args = (self._root, ids, self._settings.block_size, generation.salt)
                long = len(ids) >= LONG_PROMPT
                known[id(ids)] = await asyncio.to_thread(chain, *args) if long else chain(*args)
            generation.digests = list(known[id(ids)])

    async def _run_many(self, generations: list[Generation]) -> AsyncGenerator[Step, None]:
        steps: asyncio.Queue[Step | BaseException] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pump(generation, steps)) for generation in generations]
        try:
            left = len(tasks)
            while left:
                step = await steps.get()
                if isinstance(step, BaseException):
                    raise step
                left -= step.last
                yield step
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, generation: Generation, steps: asyncio.Queue[Step | BaseException]) -> None:
        try:
            async with aclosing(self._run_one(generation)) as own:
                async for step in own:
                    steps.put_nowait(step)
        except Exception as error:
            steps.put_nowait(error)

    async def _run_one(self, generation: Generation) -> AsyncGenerator[Step, None]:
        sequence: KVSequence | None = None
        self.counters.waiting += 1
        try:
            async with self._turn:
                sequence = await self._open(generation)
                await self._prefill(len(generation.token_ids), sequence)
            async with aclosing(self._decode(generation, sequence)) as steps:
                async for step in steps:
                    yield step
            self.counters.finished(generation.plan.finish_reason)
        finally:
            self._leave(sequence)

    def _leave(self, sequence: KVSequence | None) -> None:
        if sequence is None:
            self.counters.waiting -= 1
            return
        self.counters.running -= 1
        sequence.close()
        self._room.set()

    async def _open(self, generation: Generation) -> KVSequence:
        """Wait for room. Only the request whose turn it is gets here: first come, first served."""
        while True:
            if self.counters.running < self._settings.max_num_seqs:
                ids, output = generation.token_ids, len(generation.plan.ids)
                sequence = self.cache.open(ids, generation.digests, generation.salt, output)
                if sequence is not None:
                    generation.cached_tokens = sequence.cached_tokens
                    self.counters.started(len(ids), sequence.cached_tokens)
                    return sequence
            self._room.clear()
            await self._room.wait()

    async def _prefill(self, prompt_tokens: int, sequence: KVSequence) -> None:
        while sequence.computed < prompt_tokens:
            upto = min(sequence.computed + self._settings.max_num_batched_tokens, prompt_tokens)
            sequence.reserve(upto)
            await asyncio.sleep(self._timing.prefill(upto - sequence.computed))
            sequence.compute(upto)
            self._publish(self.cache.take_events())

    async def _decode(self, generation: Generation, sequence: KVSequence) -> AsyncGenerator[Step, None]:
        ids, prompt_tokens = generation.plan.ids, len(generation.token_ids)
        scripted = generation.step_seconds
        pace = Pace(self._timing.decode_step if scripted is None else scripted)
        for start in range(0, len(ids), generation.tokens_per_step):
            if start or scripted is not None:
                await pace.step()
            piece = ids[start : start + generation.tokens_per_step]
            end = start + len(piece)
            self._decoded(sequence, piece, prompt_tokens + end - 1)
            yield Step(generation, start, piece, end == len(ids))

    def _decoded(self, sequence: KVSequence, piece: list[int], computed: int) -> None:
        """A step's last token is out but not yet in the cache: the next step computes it."""
        self.counters.generation_tokens += len(piece)
        sequence.extend(piece)
        sequence.reserve(computed)
        sequence.compute(computed)
        self._publish(self.cache.take_events())
