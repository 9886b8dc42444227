"""One simulated engine: continuous batching with chunked prefill, preemption and a prefix cache.

It has no clock. A caller asks for a step, learns how long it takes, and ends it; steps that only decode are
planned many at a time and may be cut short at a step's boundary when a prompt arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from loadtests.fleet.cache import BlockCache
from loadtests.fleet.request import Request
from loadtests.fleet.timing import SERVER, Timing

_STRETCH = 64
"""Most decode steps planned at once."""


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's size and speed."""

    timing: Timing = SERVER
    block_tokens: int = 512
    capacity_blocks: int = 4_000
    state_blocks: int = 0
    """Blocks that one recurrent state takes; 0 for a model without."""
    step_tokens: int = 8_192
    """Tokens, of prompts and answers, in one step."""
    max_sequences: int = 256


class Running:
    """One request in an engine."""

    __slots__ = (
        "cached_tokens",
        "computed",
        "generated",
        "held",
        "junction",
        "number",
        "open_blocks",
        "prefilling",
        "request",
        "room",
        "states",
        "target",
    )

    def __init__(self, number: int, request: Request) -> None:
        self.number = number
        self.request = request
        self.generated = 0
        self.cached_tokens: int | None = None
        """Of the first admission."""
        self.restart()

    def restart(self) -> None:
        """Back to the queue: all that is known by now has to be computed, as far as it is not cached."""
        self.computed = 0
        self.target = self.request.prompt_tokens + self.generated
        self.prefilling = True
        self.held: list[int] = []
        self.open_blocks = 0
        self.room = 0
        """Tokens that fit into the blocks it has."""
        self.states: list[int] = []
        self.junction = 0
        """Blocks up to which attention is cached and no state is: others will branch there too."""


class Step:
    """What an engine is about to do. `repeats` may be lowered, to no less than 1."""

    __slots__ = ("chunks", "decoding", "repeats", "seconds")

    def __init__(
        self, chunks: list[tuple[Running, int]], decoding: list[Running], repeats: int, seconds: float
    ) -> None:
        self.chunks = chunks
        self.decoding = decoding
        self.repeats = repeats
        self.seconds = seconds
        """Of each repeat, by the engine's timing."""


class Progress(msgspec.Struct):
    """What a step led to."""

    first_tokens: list[Running] = []
    finished: list[Running] = []


class Engine:
    """See the module."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.cache = BlockCache(spec.capacity_blocks, spec.state_blocks)
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        """In the order of admission; the last is preempted first."""
        self.preemptions = 0
        self.computed_tokens = 0
        """Prompt tokens that were computed, over all requests and restarts."""

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    def submit(self, number: int, request: Request) -> None:
        """Queue a request. Raises ValueError when it can never fit."""
        blocks = -(-(request.prompt_tokens + request.output_tokens) // self.spec.block_tokens)
        if blocks + 3 * self.spec.state_blocks > self.spec.capacity_blocks:
            raise ValueError(f"a request of {blocks} blocks does not fit {self.spec.capacity_blocks}")
        self.waiting.append(Running(number, request))

    def plan(self) -> Step | None:
        """The next step; None when there is nothing to do. One step is planned and ended at a time."""
        decoding = self._decoding()
        chunks = self._chunks(self.spec.step_tokens - len(decoding))
        if not chunks and not decoding:
            return None
        repeats = 1 if chunks else self._stretch(decoding)
        return Step(chunks, decoding, repeats, self._seconds(chunks, decoding))

    def end(self, step: Step) -> Progress:
        """The step is over, all repeats of it."""
        progress = Progress()
        for running, chunk in step.chunks:
            self.computed_tokens += chunk
            running.computed += chunk
            self._commit(running)
            if running.computed == running.target:
                running.prefilling = False
                running.generated += 1
                if running.generated == 1:
                    progress.first_tokens.append(running)
        size, repeats = self.spec.block_tokens, step.repeats
        for running in step.decoding:
            running.generated += repeats
            running.computed += repeats
            if running.computed - len(running.held) * size >= size:
                self._commit(running)
        self._retire(progress)
        return progress

    # Planning

    def _decoding(self) -> list[Running]:
        """Those that decode, each with room for one more token; preempts the youngest while there is none."""
        return [
            running
            for running in list(self.running)
            if not running.prefilling and (running.computed < running.room or self._squeeze(running))
        ]

    def _squeeze(self, running: Running) -> bool:
        """Make room for one more token; False when that took the sequence's own blocks."""
        while not self._make_room(running, running.computed + 1):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is running:
                return False
        return True

    def _chunks(self, budget: int) -> list[tuple[Running, int]]:
        chunks: list[tuple[Running, int]] = []
        for running in self.running:
            if running.prefilling and budget > 0:
                chunk = min(running.target - running.computed, budget)
                chunks.append((running, chunk))
                budget -= chunk
        while budget > 0 and self.waiting and len(self.running) < self.spec.max_sequences:
            if not self._admit(self.waiting[0]):
                break
            running = self.waiting.popleft()
            self.running.append(running)
            chunk = min(running.target - running.computed, budget)
            chunks.append((running, chunk))
            budget -= chunk
        return chunks

    def _admit(self, running: Running) -> bool:
        """Take what is cached and blank blocks for all that must be computed, or nothing."""
        blocks = running.request.blocks
        size = self.spec.block_tokens
        hit = self.cache.hit(blocks, (running.target - 1) // size)
        cached = list(blocks[: hit.usable])
        state = [~cached[-1]] if cached and self.spec.state_blocks else []
        self.cache.hold(cached + state)
        if not self._allocate(running, -(-running.target // size) - hit.usable):
            self.cache.release(state + cached)
            return False
        running.held = cached
        running.room += len(cached) * size
        running.states = state
        running.computed = hit.usable * size
        running.junction = hit.attention if hit.attention > hit.usable else 0
        if running.cached_tokens is None:
            running.cached_tokens = running.computed
        return True

    def _stretch(self, decoding: list[Running]) -> int:
        """How many times in a row the same sequences can decode without anything else to do."""
        most = min([running.request.output_tokens - running.generated for running in decoding])
        most = min(most, _STRETCH)
        short = [running for running in decoding if running.computed + most > running.room]
        if most > 1 and all(self._make_room(running, running.computed + most) for running in short):
            return most
        return 1

    def _make_room(self, running: Running, tokens: int) -> bool:
        missing = -(-tokens // self.spec.block_tokens) - len(running.held) - running.open_blocks
        return missing <= 0 or self._allocate(running, missing)

    def _allocate(self, running: Running, count: int) -> bool:
        if not self.cache.allocate(count):
            return False
        running.open_blocks += count
        running.room += count * self.spec.block_tokens
        return True

    def _preempt(self, running: Running) -> None:
        self.preemptions += 1
        self.running.remove(running)
        self._give_back(running)
        running.restart()
        self.waiting.appendleft(running)

    def _seconds(self, chunks: Iterable[tuple[Running, int]], decoding: Sequence[Running]) -> float:
        tokens = 0
        contexts = 0.0
        for running, chunk in chunks:
            tokens += chunk
            contexts += chunk * (running.computed + chunk / 2)
        context = sum([running.computed for running in decoding])
        timing = self.spec.timing
        return timing.prefill(tokens, contexts) + timing.decode(len(decoding), context)

    # Progress

    def _commit(self, running: Running) -> None:
        """Cache the blocks that have become full."""
        full = running.computed // self.spec.block_tokens
        before = len(running.held)
        if full > before:
            blocks = running.request.blocks[before:full]
            self.cache.commit(blocks, running.held[-1] if before else None)
            running.held += blocks
            running.open_blocks -= len(blocks)
            if self.spec.state_blocks:
                self._keep_states(running, before, full)

    def _keep_states(self, running: Running, before: int, full: int) -> None:
        """A state stays where others branched off, and at the last whole block before the prompt's end."""
        last = (running.target - 1) // self.spec.block_tokens
        for position in {running.junction, last}:
            if before < position <= full:
                self._keep_state(running, running.held[position - 1])

    def _keep_state(self, running: Running, block: int) -> None:
        if self.cache.commit_state(block):
            running.states.append(~block)

    def _retire(self, progress: Progress) -> None:
        done = [running for running in self.running if running.generated >= running.request.output_tokens]
        for running in done:
            if self.spec.state_blocks and running.held:
                self._keep_state(running, running.held[-1])
            self._give_back(running)
            progress.finished.append(running)
        if done:
            self.running = [running for running in self.running if running not in done]

    def _give_back(self, running: Running) -> None:
        self.cache.release(running.states)
        self.cache.release(running.held)
        self.cache.free_blank(running.open_blocks)
