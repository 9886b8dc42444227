"""A policy that looks into the engines: what exact knowledge would be worth."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random
from typing import NamedTuple

from loadtests.fleet.cache import CacheEvent
from loadtests.fleet.chooser import Choice, Sight, Sights
from loadtests.fleet.engine import Engine, Running
from loadtests.fleet.priced import BusyPrice
from loadtests.fleet.request import Request
from loadtests.fleet.view import lowest


_PER_SEQUENCE = 0.002
"""Seconds that a sequence in flight costs a prompt beside it, over its life."""


class Outlook(NamedTuple):
    """A prompt on a worker; times in seconds."""

    wait: float
    prefill: float
    cached_tokens: int
    sequences: int


class Oracle:
    """The priced cost with true waits and prefills: queue, cache, pace and step under way of each engine.

    It does not know the future, nor how long answers will be. Greedy, so not a bound.
    """

    def __init__(self, seed: int, sights: Sights) -> None:
        self._random = Random(seed)
        self._sights = sights
        self._price = BusyPrice()
        self._tickets = 0

    def add_worker(self, worker: str) -> None:
        pass

    def remove_worker(self, worker: str) -> None:
        pass

    def choose(self, request: Request, now: float) -> Choice:
        names = list(self._sights)
        outlooks = [outlook(self._sights[name], request, now) for name in names]
        waits = [each.wait for each in outlooks]
        weight = 1 + self._price.now(waits)
        costs = [each.wait + weight * each.prefill + _PER_SEQUENCE * each.sequences for each in outlooks]
        chosen = lowest(costs, self._random)
        self._price.placed(waits, outlooks[chosen].prefill)
        self._tickets += 1
        return Choice(names[chosen], self._tickets, outlooks[chosen].cached_tokens)

    def first_token(self, ticket: int, cached_tokens: int, now: float) -> None:
        pass

    def release(self, ticket: int, output_tokens: int, now: float) -> None:
        pass

    def apply(self, worker: str, events: Iterable[CacheEvent], now: float) -> None:
        pass


def outlook(worker: Sight, request: Request, now: float) -> Outlook:
    """What a prompt that arrives now would meet there."""
    engine = worker.engine
    seconds = 0.0
    coming: set[int] = set()
    for running in (*engine.running, *engine.waiting):
        if running.prefilling:
            seconds += prefill_seconds(engine, running.target, _done(engine, running, coming))
            coming.update(running.request.blocks[: running.request.prompt_tokens // engine.spec.block_tokens])
    step = worker.step
    under_way = now - worker.began if step is not None and step.chunks else 0.0
    held = cached_tokens(engine, request, coming)
    speed = worker.pace.speed
    prefill = speed * prefill_seconds(engine, request.prompt_tokens, held)
    return Outlook(max(seconds * speed - under_way, 0.0), prefill, held, len(engine.running))


def _done(engine: Engine, running: Running, coming: Collection[int]) -> int:
    return running.computed or cached_tokens(engine, running.request, coming)


def cached_tokens(engine: Engine, request: Request, coming: Collection[int] = ()) -> int:
    """Usable prefix, with what those before it are about to compute (states of a hybrid model apart)."""
    size = engine.spec.block_tokens
    limit = (request.prompt_tokens - 1) // size
    depth = engine.cache.hit(request.blocks, limit).usable
    if coming and not engine.spec.state_blocks:
        for block in request.blocks[depth:limit]:
            if block not in coming and block not in engine.cache:
                break
            depth += 1
    return depth * size


def prefill_seconds(engine: Engine, tokens: int, done: int) -> float:
    """Of one prompt, with the decoding beside it."""
    spec = engine.spec
    steps = -(-(tokens - done) // spec.step_tokens)
    decoding = [running for running in engine.running if not running.prefilling]
    beside = spec.timing.decode(len(decoding), sum(running.computed for running in decoding))
    return spec.timing.alone(tokens, done, spec.step_tokens) + steps * beside
