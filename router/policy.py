"""Policies: which eligible rank gets a prompt. A new one is a class with `choose` and a registry entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from router.cost import CostModel
from router.target import Ask, Target

TIE_SECONDS, TIE_SHARE = 0.001, 0.01
"""By so much costs do not differ: learned paces and measured links are never quite equal, and the same rank
would get every prompt of an idle fleet."""


def tied_up_to(cost: float) -> float:
    """Costs up to this do not differ from `cost`."""
    return cost * (1 + TIE_SHARE) + TIE_SECONDS


class Policy(Protocol):
    """Chooses one of at least one target."""

    def choose(self, targets: Sequence[Target], ask: Ask) -> Target: ...


class KvPolicy:
    """The lowest cost, counting what each rank has cached.

    Of ranks whose costs hardly differ the one with the most cached tokens, then the least recently used.
    """

    def __init__(self, cost: CostModel, _random: Random) -> None:
        self._cost = cost

    def choose(self, targets: Sequence[Target], ask: Ask) -> Target:
        seconds = self._cost.seconds
        costs = [seconds(target, ask) for target in targets]
        as_good = tied_up_to(min(costs))
        tied = [target for target, cost in zip(targets, costs, strict=True) if cost <= as_good]
        if len(tied) == 1:
            return tied[0]
        held = ask.overlaps.get
        return min(tied, key=lambda target: (-held(target.source, 0), target.last_used))


class LeastLoadedPolicy:
    """The fewest predicted seconds of what is in flight, whatever is cached."""

    def __init__(self, cost: CostModel, _random: Random) -> None:
        self._cost = cost

    def choose(self, targets: Sequence[Target], ask: Ask) -> Target:
        occupied, now = self._cost.occupied, ask.now
        return min(targets, key=lambda target: (occupied(target.load, now), target.last_used))


class PowerOfTwoPolicy:
    """The less loaded of two ranks drawn at random."""

    def __init__(self, cost: CostModel, random: Random) -> None:
        self._least_loaded = LeastLoadedPolicy(cost, random)
        self._random = random

    def choose(self, targets: Sequence[Target], ask: Ask) -> Target:
        return self._least_loaded.choose(self._random.sample(targets, min(2, len(targets))), ask)


class RoundRobinPolicy:
    """The least recently used rank."""

    def __init__(self, _cost: CostModel, _random: Random) -> None:
        pass

    def choose(self, targets: Sequence[Target], _ask: Ask) -> Target:
        return min(targets, key=lambda target: target.last_used)


class RandomPolicy:
    """Any rank."""

    def __init__(self, _cost: CostModel, random: Random) -> None:
        self._random = random

    def choose(self, targets: Sequence[Target], _ask: Ask) -> Target:
        return self._random.choice(targets)


POLICIES: dict[str, Callable[[CostModel, Random], Policy]] = {
    "kv": KvPolicy,
    "least_loaded": LeastLoadedPolicy,
    "power_of_two": PowerOfTwoPolicy,
    "round_robin": RoundRobinPolicy,
    "random": RandomPolicy,
    "session": KvPolicy,  # for who has no session yet; `sessions` keeps the others where they are
}


def make_policy(name: str, cost: CostModel, random: Random) -> Policy:
    """The policy of that name; raises ValueError with the names there are."""
    factory = POLICIES.get(name)
    if factory is None:
        raise ValueError(f"unknown routing policy {name!r}; there are {', '.join(POLICIES)}")
    return factory(cost, random)
