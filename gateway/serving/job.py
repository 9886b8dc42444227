"""A request that is ready to go out, and how what comes back is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.access.access import Charge
from gateway.engines.base import Image
from gateway.tokens.encodings import Encoding
from gateway.tokens.prompts import EncodedPrompt
from parsers.base import Constraint, OutputOptions


class Job(msgspec.Struct, kw_only=True):
    """One request in the encoding of some pools; `others` are the same request in other encodings."""

    request_id: str
    model: str
    prompt: EncodedPrompt
    sampling: dict[str, bytes]
    top_level: dict[str, bytes]
    max_tokens: int
    cache_salt: str | None
    started: float
    """Event-loop time when the request came in, in seconds."""
    priority: int = 0
    """Of requests that wait the lowest goes first."""
    patience: Callable[[], float | None] | None = None
    """Tells how many seconds the client waits for its answer, if it said so."""
    constraint: Constraint | None = None
    """What the worker must keep the answer to."""
    choices: int = 1
    vocabulary: int = 2**32
    """Token ids below this exist in its encoding."""
    logprobs: int | None = None
    """Log-probabilities wanted for each token: its own and those of this many alternatives."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens."""
    images: Sequence[Image] = ()
    session: str | None = None
    labels: Mapping[str, str] = {}
    """Only workers with these may serve it."""
    may_stop_early: bool = False
    """The gateway itself ends the generation, at a stop string."""
    pools: frozenset[str] | None = None
    """Pools whose workers take it so; None for all."""
    client_retry: bool = False
    """The client has asked for it before: its own retries are enough."""
    unable: frozenset[str] = frozenset()
    """Workers that do not have one of its sampling parameters."""
    others: Sequence[Job] = ()

    @property
    def one_worker(self) -> bool:
        """Its prompt must be computed where its answer is: a KV handle is for one choice, and without it
        nothing is known of the prompt's tokens."""
        return self.choices > 1 or self.prompt_logprobs is not None

    def of_pool(self, pool: str) -> Job:
        """The job as the workers of a pool take it."""
        for job in self.others:
            if job.pools is not None and pool in job.pools:
                return job
        return self


class Reading(msgspec.Struct, frozen=True):
    """How an answer in one encoding is read and counted."""

    encoding: Encoding
    options: OutputOptions | None
    """None for a plain completion."""
    counted_prompt_tokens: int
    """Prompt tokens as usage reports them."""


class StopRules(msgspec.Struct, frozen=True, kw_only=True):
    """What ends an answer at the request's wish."""

    strings: Sequence[str] = ()
    token_ids: Sequence[int] = ()
    shown: bool = False
    """What stopped the answer is part of it."""
    min_tokens: int = 0


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer tells of each token."""

    logprobs: int | None = None
    usage: bool = False
    """Every chunk has the usage so far."""
    token_ids: bool = False
    """Every chunk has the tokens that it comes from."""


class Prepared(msgspec.Struct, kw_only=True):
    """A job, and what its answer needs."""

    job: Job
    readings: Sequence[Reading]
    """One for the job and one for each of its others."""
    n: int
    stream: bool
    include_usage: bool
    stop_rules: StopRules | None = None
    details: Details | None = None
    strict_vendor: bool = False
    """The vendor's contract to the letter, where that is not what OpenAI's clients are used to."""
    key_name: str | None = None
    """Whose key the client used."""
    charge: Charge | None = None
    """Tokens that the key has given for it."""
    values: Mapping[str, Any]
    """Checked values of the request's fields; `echoed` is the text that the answer begins with."""

    def reading(self, pool: str) -> Reading:
        """For an answer from a worker of that pool."""
        if len(self.readings) > 1:
            for reading in self.readings:
                if pool in reading.encoding.pools:
                    return reading
        return self.readings[0]
