"""One request of either generation endpoint, from the checked body to the bytes that go out."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from simulator import errors, replies
from simulator.constraint import read_constraint
from simulator.engine import Engine
from simulator.generation import Generation, Leg, Step
from simulator.kv.parameters import TransferParameters, remote_blocks
from simulator.output import Limits, Plan, Script, plan_output
from simulator.prompt import answer_start, read_prompt
from simulator.replies import Usage
from simulator.requests import Sampling, StreamOptions
from simulator.script import FILLER, OPENING, code_word, write_script
from simulator.settings import SimulatorSettings
from simulator.tokens import Tokens

UNSCRIPTED = Script()


class Planner:
    """Turns prompts and sampling parameters into planned generations."""

    def __init__(self, settings: SimulatorSettings, tokens: Tokens) -> None:
        self.context_length = settings.context_length
        self._settings = settings
        self._tokens = tokens
        self._filler = tokens.encode(FILLER)
        self._opening = tokens.encode(OPENING)[:-1]
        """The last id would be another one where the text goes on."""

    def plan(
        self, ids: list[int], sampling: Sampling, script: Script | None, salt: str | None, first: int
    ) -> list[Generation]:
        """`sampling.n` generations for one prompt, numbered from `first`. Raises ApiError."""
        script = script or UNSCRIPTED
        scripts = [script.ids(first + offset) for offset in range(sampling.n)]
        for checked in (ids, *scripts):
            if (outside := self._tokens.first_outside(checked or [])) is not None:
                raise errors.outside_vocabulary(outside)
        room = max(self.context_length - len(ids), 1)
        limits = Limits(
            max_tokens=room if sampling.max_tokens is None else min(sampling.max_tokens, room),
            end_ids=self._tokens.end_ids,
            eos_id=self._tokens.eos_id,
            stop_token_ids=frozenset(sampling.stop_token_ids or ()),
            stop=sampling.stop_strings,
            min_tokens=sampling.min_tokens or 0,
            ignore_eos=bool(sampling.ignore_eos),
        )
        start = len(ids) if script.script_ids is not None else answer_start(ids, self._tokens, self._opening)
        rewrite = partial(self._plan, ids, start, sampling, limits) if script.script_ids is None else None
        return [
            Generation(
                index=first + offset,
                token_ids=ids,
                plan=self._plan(ids, start, sampling, limits, 0) if said is None else self._cut(said, limits),
                tokens_per_step=max(script.tokens_per_step or self._settings.tokens_per_step, 1),
                step_seconds=None if script.delay_ms is None else max(script.delay_ms, 0) / 1000,
                salt=salt,
                siblings=sampling.n,
                max_tokens=limits.max_tokens,
                rewrite=rewrite,
                answer_start=start,
            )
            for offset, said in enumerate(scripts)
        ]

    def _cut(self, wanted: list[int], limits: Limits) -> Plan:
        return plan_output(wanted, limits, self._filler, self._tokens.bytes_of)

    def _plan(self, ids: list[int], start: int, sampling: Sampling, limits: Limits, digest: int) -> Plan:
        """What a worker says whose memory of the prompt has this digest; the rest of it, where `ids` go on
        after the prompt's end at `start`."""
        view, said = read_prompt(ids[:start], self._tokens), len(ids) - start
        constraint = read_constraint(sampling.structured_outputs)
        script = write_script(view, self._tokens, constraint, code_word(digest))
        return self._cut(script[said:], limits)


class Service(NamedTuple):
    """What all exchanges of a worker share."""

    planner: Planner
    tokens: Tokens
    model: str
    force_usage: bool
    """Usage in every stream, asked for or not."""

    def wants_usage(self, options: StreamOptions | None) -> tuple[bool, bool]:
        """Whether a stream gets a usage chunk, and whether it gets usage on every chunk."""
        if self.force_usage:
            return True, True
        return wants_usage(options)


class Exchange(ABC):
    """What the endpoints share: running the generations and counting.

    `stream` gives the events of a streamed answer, `body` a whole answer. Leaving either early stops
    the engine.
    """

    def __init__(
        self, request_id: str, engine: Engine, generations: list[Generation], prompt_tokens: int
    ) -> None:
        self.request_id = request_id
        self.generations = generations
        self.usage = Usage(prompt_tokens=prompt_tokens)
        self.created = int(time.time())
        self._engine = engine

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, the closing [DONE] included."""
        async with aclosing(self._engine.run(self.generations)) as steps:
            async for step in steps:
                self._count(step)
                event = self.chunk(step)
                if event:
                    yield event
        yield self.usage_chunk() + replies.DONE

    async def body(self) -> bytes:
        """The JSON body of a whole answer."""
        async with aclosing(self._engine.run(self.generations)) as steps:
            async for step in steps:
                self._count(step)
        return self.whole([Step(generation, 0, generation.plan.ids, True) for generation in self.generations])

    def abort(self) -> None:
        """End the answer where it is."""
        self._engine.abort(self.generations)

    def take_legs(self, parameters: TransferParameters) -> None:
        """Keep or fetch KV blocks, as the request's kv_transfer_params ask for. Raises BadParametersError."""
        remote = remote_blocks(parameters) if parameters.do_remote_prefill else None
        if remote is None and not parameters.do_remote_decode:
            return
        for generation in self.generations:
            generation.leg = Leg(
                request_id=self.internal_id(generation),
                keeps=bool(parameters.do_remote_decode),
                remote=remote,
            )

    @property
    def kv_transfer_params(self) -> replies.Json | None:
        """What a prefill leg answers, once it has ended; the first choice's where there are several."""
        leg = self.generations[0].leg
        return None if leg is None else leg.answer

    @abstractmethod
    def internal_id(self, generation: Generation) -> str:
        """The engine's name for a generation: its peers know its blocks by it."""

    @abstractmethod
    def chunk(self, step: Step) -> bytes:
        """The events of one step; nothing for a step that shows nothing."""

    @abstractmethod
    def usage_chunk(self) -> bytes:
        """The event with the usage; nothing when nobody asked for it."""

    @abstractmethod
    def whole(self, steps: list[Step]) -> bytes:
        """The body; each step is a choice's whole output."""

    def _count(self, step: Step) -> None:
        self.usage.completion_tokens += len(step.ids)
        self.usage.cached_tokens = max(self.usage.cached_tokens, step.generation.cached_tokens)


def wants_usage(options: StreamOptions | None) -> tuple[bool, bool]:
    """Whether a usage chunk and whether usage on every chunk is asked for."""
    if options is None or not options.include_usage:
        return False, False
    return True, bool(options.continuous_usage_stats)


def internal_suffix() -> str:
    """Eight random hex digits that end the engine's name for a request."""
    return secrets.token_hex(4)


def new_id() -> str:
    """Sixteen random hex digits, as vLLM's ids have."""
    return secrets.token_hex(8)
