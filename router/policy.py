"""Policies: which eligible rank gets a prompt. A new one is a class with `choose` and a registry entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from router.cost import CostModel
from router.holdings import Source
from router.load import Load
from router.messages import WorkerInfo, WorkerKey


class Target:
    """One worker rank that may be chosen."""

    __slots__ = ("capacity", "info", "key", "last_used", "load", "source")

    def __init__(
        self, info: WorkerInfo, key: WorkerKey, load: Load, source: Source, last_used: float
    ) -> None:
        self.info = info
        self.key = key
        self.load = load
        self.source = source
        self.last_used = last_used
        """Number of the last route that chose it; unused ranks have negative numbers in random order."""
        self.capacity: float = float("inf") if info.max_num_seqs is None else info.max_num_seqs
        """Sequences that the rank runs at once; more would wait in its queue."""


Overlaps = Mapping[Source, int]
"""Usable cached tokens of the prompt at hand; absent is 0."""


class Policy(Protocol):
    """Chooses one of at least one target for a prompt of `prompt_tokens`."""

    def choose(self, targets: Sequence[Target], overlaps: Overlaps, prompt_tokens: int) -> Target: ...


class KvPolicy:
    """The fewest predicted seconds, counting what each rank has cached."""

    def __init__(self, cost: CostModel, _random: Random) -> None:
        self._cost = cost

    def choose(self, targets: Sequence[Target], overlaps: Overlaps, prompt_tokens: int) -> Target:
        seconds, cached = self._cost.seconds, overlaps.get
        best = targets[0]
        lowest = float("inf")
        for target in targets:
            cost = seconds(target.load, prompt_tokens - cached(target.source, 0))
            if cost < lowest or (cost == lowest and target.last_used < best.last_used):
                best, lowest = target, cost
        return best


class LeastLoadedPolicy:
    """The fewest predicted seconds of what is in flight, whatever is cached."""

    def __init__(self, cost: CostModel, _random: Random) -> None:
        self._cost = cost

    def choose(self, targets: Sequence[Target], _overlaps: Overlaps, _prompt_tokens: int) -> Target:
        seconds = self._cost.seconds
        return min(targets, key=lambda target: (seconds(target.load, 0), target.last_used))


class PowerOfTwoPolicy:
    """The less loaded of two ranks drawn at random."""

    def __init__(self, cost: CostModel, random: Random) -> None:
        self._least_loaded = LeastLoadedPolicy(cost, random)
        self._random = random

    def choose(self, targets: Sequence[Target], overlaps: Overlaps, prompt_tokens: int) -> Target:
        drawn = self._random.sample(targets, min(2, len(targets)))
        return self._least_loaded.choose(drawn, overlaps, prompt_tokens)


class RoundRobinPolicy:
    """The least recently used rank."""

    def __init__(self, _cost: CostModel, _random: Random) -> None:
        pass

    def choose(self, targets: Sequence[Target], _overlaps: Overlaps, _prompt_tokens: int) -> Target:
        return min(targets, key=lambda target: target.last_used)


class RandomPolicy:
    """Any rank."""

    def __init__(self, _cost: CostModel, random: Random) -> None:
        self._random = random

    def choose(self, targets: Sequence[Target], _overlaps: Overlaps, _prompt_tokens: int) -> Target:
        return self._random.choice(targets)


POLICIES: dict[str, Callable[[CostModel, Random], Policy]] = {
    "kv": KvPolicy,
    "least_loaded": LeastLoadedPolicy,
    "power_of_two": PowerOfTwoPolicy,
    "round_robin": RoundRobinPolicy,
    "random": RandomPolicy,
}


def make_policy(name: str, cost: CostModel, random: Random) -> Policy:
    """The policy of that name; raises ValueError with the names there are."""
    factory = POLICIES.get(name)
    if factory is None:
        raise ValueError(f"unknown routing policy {name!r}; there are {', '.join(POLICIES)}")
    return factory(cost, random)
