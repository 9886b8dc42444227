"""Every policy by name: the router's own, its rivals and the oracle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from loadtests.fleet.chooser import Chooser, MakeChooser, RouterChooser, Sights
from loadtests.fleet.oracle import Oracle
from loadtests.fleet.rivals import CacheAware, Dynamo, Multiplicative, Weighted
from loadtests.fleet.view import Formula, ViewChooser


def _routed(policy: str, seed: int, block_tokens: int, sights: Sights) -> Chooser:
    return RouterChooser(policy, seed, block_tokens)


def _viewed(make: Callable[[int], Formula], seed: int, block_tokens: int, sights: Sights) -> Chooser:
    return ViewChooser(make(seed), block_tokens)


def _oracle(seed: int, block_tokens: int, sights: Sights) -> Chooser:
    return Oracle(seed, sights)


OURS = "kv"
OWN = (OURS, "least_loaded", "power_of_two", "round_robin", "random")
RIVALS: dict[str, Callable[[int], Formula]] = {
    "dynamo": Dynamo,
    "dynamo_scale4": partial(Dynamo, prefill_load_scale=4.0),
    "sglang": partial(CacheAware, miss_to_smallest_tree=True),
    "sglang_min_load": partial(CacheAware, miss_to_smallest_tree=False),
    "llm_d": Weighted,
    "multiplicative": Multiplicative,
}
ORACLE = "oracle"

POLICIES: dict[str, MakeChooser] = {
    **{name: partial(_routed, name) for name in OWN},
    **{name: partial(_viewed, make) for name, make in RIVALS.items()},
    ORACLE: _oracle,
}
