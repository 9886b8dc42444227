"""A policy that looks into the engines: what exact knowledge would be worth."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from loadtests.fleet.cache import CacheEvent
from loadtests.fleet.chooser import Choice, Sight, Sights
from loadtests.fleet.engine import Engine, Running
from loadtests.fleet.request import Request
from loadtests.fleet.view import lowest

_PRICE = 10.0
_FREE_WAIT = 1.0
_GAIN = 0.01


class Oracle:
    """The least true wait and prefill, with a price on prefill seconds when queues grow.

    It knows each engine's queue, cache, pace and step under way; not the future. Greedy, so not a bound.
    """

    def __init__(self, seed: int, sights: Sights) -> None:
        self._random = Random(seed)
        self._sights = sights
        self._tickets = 0
        self._usual = 0.5
        """Moving mean of the prefill seconds of a request."""

    def add_worker(self, worker: str) -> None:
        pass

    def remove_worker(self, worker: str) -> None:
        pass

    def choose(self, request: Request, now: float) -> Choice:
        names = list(self._sights)
        workers = [self._sights[name] for name in names]
        waits = [wait_seconds(worker, now) for worker in workers]
        cached = [cached_tokens(worker.engine, request) for worker in workers]
        own = [
            prefill_seconds(worker.engine, request.prompt_tokens, held) * worker.pace.speed
            for worker, held in zip(workers, cached, strict=True)
        ]
        congestion = sorted(waits)[len(waits) // 2] / self._usual
        price = 1 + _PRICE * max(0.0, congestion - _FREE_WAIT)
        chosen = lowest([wait + price * each for wait, each in zip(waits, own, strict=True)], self._random)
        self._usual += _GAIN * (own[chosen] - self._usual)
        self._tickets += 1
        return Choice(names[chosen], self._tickets, cached[chosen])

    def first_token(self, ticket: int, cached_tokens: int, now: float) -> None:
        pass

    def release(self, ticket: int, output_tokens: int, now: float) -> None:
        pass

    def apply(self, worker: str, events: Iterable[CacheEvent], now: float) -> None:
        pass


def cached_tokens(engine: Engine, request: Request) -> int:
    size = engine.spec.block_tokens
    return engine.cache.hit(request.blocks, (request.prompt_tokens - 1) // size).usable * size


def prefill_seconds(engine: Engine, tokens: int, done: int) -> float:
    """Of one prompt, with the decoding beside it."""
    spec = engine.spec
    steps = -(-(tokens - done) // spec.step_tokens)
    decoding = [running for running in engine.running if not running.prefilling]
    beside = spec.timing.decode(len(decoding), sum(running.computed for running in decoding))
    return spec.timing.alone(tokens, done, spec.step_tokens) + steps * beside


def wait_seconds(worker: Sight, now: float) -> float:
    """Until the engine would begin a prompt that arrives now."""
    engine = worker.engine
    seconds = sum(_left_seconds(engine, running) for running in engine.running if running.prefilling)
    seconds += sum(
        prefill_seconds(engine, running.target, cached_tokens(engine, running.request))
        for running in engine.waiting
    )
    done = now - worker.began if worker.step is not None and worker.step.chunks else 0.0
    return max(seconds * worker.pace.speed - done, 0.0)


def _left_seconds(engine: Engine, running: Running) -> float:
    return prefill_seconds(engine, running.target, running.computed)
