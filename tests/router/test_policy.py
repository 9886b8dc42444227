from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from router.cost import CostConstants, CostModel
from router.hashing import PrefixHasher
from router.index import PrefixIndex
from router.load import Load
from router.messages import WorkerInfo, WorkerKey
from router.policy import POLICIES, Target, make_policy

COST = CostModel(
    CostConstants(
        prefill_seconds_per_token=0.001,
        decode_seconds_per_sequence=0.1,
        decode_seconds_per_context_token=0.0001,
    )
)


def targets(count: int) -> list[Target]:
    index = PrefixIndex(PrefixHasher(1))
    made = []
    for number in range(count):
        key = WorkerKey(f"w{number}")
        info = WorkerInfo(worker=key.worker, models=["m"])
        made.append(Target(info, key, Load(key), index.open(key), last_used=-number))
    return made


def test_cost_is_seconds() -> None:
    load = Load(WorkerKey("w"))
    assert COST.seconds(load, 500) == pytest.approx(0.5)
    load.queued_tokens, load.sequences, load.context_tokens = 1000, 3, 2000
    assert COST.seconds(load, 500) == pytest.approx(1.5 + 0.3 + 0.2)


def test_an_unknown_policy_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match="kv, least_loaded, power_of_two, round_robin, random"):
        make_policy("fastest", COST, Random(1))


@pytest.mark.parametrize("name", POLICIES)
def test_a_single_target_is_chosen(name: str) -> None:
    (only,) = targets(1)
    assert make_policy(name, COST, Random(1)).choose([only], {}, 10) is only


def test_kv_weighs_cache_against_queue() -> None:
    a, b, c = targets(3)
    policy = make_policy("kv", COST, Random(1))
    assert policy.choose([a, b, c], {b.source: 400, c.source: 300}, 500) is b
    b.load.queued_tokens = 50
    assert policy.choose([a, b, c], {b.source: 400, c.source: 300}, 500) is b
    b.load.queued_tokens = 150
    assert policy.choose([a, b, c], {b.source: 400, c.source: 300}, 500) is c
    c.load.sequences = 9
    assert policy.choose([a, b, c], {c.source: 300}, 500) is a


@pytest.mark.parametrize("name", ["kv", "least_loaded", "round_robin"])
def test_ties_go_to_the_least_recently_used(name: str) -> None:
    fleet = targets(4)
    policy = make_policy(name, COST, Random(1))
    chosen = []
    for turn in range(1, 9):
        target = policy.choose(fleet, {}, 100)
        target.last_used = turn
        chosen.append(target.key.worker)
    assert chosen == ["w3", "w2", "w1", "w0"] * 2


def test_least_loaded_ignores_the_cache() -> None:
    a, b = targets(2)
    a.load.sequences = 1
    assert make_policy("least_loaded", COST, Random(1)).choose([a, b], {a.source: 10_000}, 10_001) is b


def test_power_of_two_avoids_the_most_loaded_and_spreads_the_rest() -> None:
    fleet = targets(5)
    fleet[2].load.sequences = 50
    policy = make_policy("power_of_two", COST, Random(1))
    chosen: Counter[str] = Counter()
    for turn in range(1, 401):
        target = policy.choose(fleet, {}, 100)
        target.last_used = turn
        chosen[target.key.worker] += 1
    assert chosen["w2"] == 0
    assert min(chosen[name] for name in ("w0", "w1", "w3", "w4")) > 50


def test_random_reaches_everybody_and_a_seed_repeats_it() -> None:
    fleet = targets(3)
    policy = make_policy("random", COST, Random(5))
    first = [policy.choose(fleet, {}, 1).key for _ in range(60)]
    assert set(first) == {target.key for target in fleet}
    again = make_policy("random", COST, Random(5))
    assert first == [again.choose(fleet, {}, 1).key for _ in range(60)]
