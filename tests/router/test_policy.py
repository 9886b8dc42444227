from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cost import Congestion, CostConstants, CostModel, CostTerms
from router.hashing import PrefixHasher
from router.index import PrefixIndex
from router.load import Load
from router.messages import WorkerInfo, WorkerKey
from router.policy import POLICIES, make_policy
from router.target import Ask, Target

CONSTANTS = CostConstants(
    prefill_seconds=0.0,
    prefill_seconds_per_token=0.001,
    prefill_seconds_per_token_pair=0.0,
    decode_seconds_per_sequence=0.1,
    decode_seconds_per_context_token=0.0001,
)
COST = CostModel(CONSTANTS)


def targets(count: int) -> list[Target]:
    index = PrefixIndex(PrefixHasher(1))
    made = []
    for number in range(count):
        key = WorkerKey(f"w{number}")
        info = WorkerInfo(worker=key.worker, models=["m"])
        made.append(Target(info, key, Load(key), index.open(key), last_used=-number))
    return made


def queue(target: Target, seconds: float) -> None:
    """Let prompts of so many seconds wait there."""
    target.load.enqueue(1 + target.load.waiting, seconds, 0.0)


def test_cost_is_seconds() -> None:
    (target,) = targets(1)
    load, overlaps = target.load, {target.source: 300}
    assert COST.seconds(target, Ask(800, overlaps)) == pytest.approx(0.5)
    load.enqueue(1, 1.0, 0.0)
    load.sequences, load.context_tokens = 3, 2000
    assert COST.seconds(target, Ask(800, overlaps)) == pytest.approx(1.5 + 0.3 + 0.2)
    later = Ask(800, overlaps, 0.25, transfer={"w0": 0.125, "w1": 9.0})
    assert COST.seconds(target, later) == pytest.approx(1.25 + 0.3 + 0.2 + 0.125)
    assert COST.first_token(target, later) == pytest.approx(1.25 + 0.3 + 0.2 + 0.125)
    assert COST.occupied(load, 0.25) == pytest.approx(0.75 + 0.3 + 0.2)


def test_a_price_is_paid_for_prefill_alone() -> None:
    (target,) = targets(1)
    target.load.enqueue(1, 1.0, 0.0)
    priced = Ask(800, {target.source: 300}, 0.0, 4.0)
    assert COST.seconds(target, priced) == pytest.approx(1.0 + 5 * 0.5)
    assert COST.first_token(target, priced) == pytest.approx(1.0 + 0.5)
    assert COST.terms(target, priced) == CostTerms(1.0, 0.5, 2.0, 0.0, 0.0, 0.0, 0.0)


@given(
    st.integers(1, 2_000),
    st.integers(0, 2_000),
    st.floats(0, 9),
    st.floats(0, 99),
    st.floats(0, 9),
    st.booleans(),
)
def test_the_terms_add_up_to_the_cost(
    prompt: int, cached: int, now: float, price: float, transfer: float, failing: bool
) -> None:
    (target,) = targets(1)
    queue(target, 2.0)
    target.load.sequences = 2
    if failing:
        target.load.failures.failed(0.0)
    ask = Ask(prompt, {target.source: min(cached, prompt)}, now, price, {"w0": transfer})
    assert COST.terms(target, ask).total == pytest.approx(COST.seconds(target, ask))


def test_attention_makes_late_tokens_dearer_and_nothing_to_compute_is_free() -> None:
    cost = CostModel(msgspec.structs.replace(CONSTANTS, prefill_seconds_per_token_pair=1e-6))
    load = Load(WorkerKey("w"))
    assert cost.prefill(load, 1000, 0) == pytest.approx(1.0 + 1000 * 500e-6)
    assert cost.prefill(load, 1000, 900) == pytest.approx(0.1 + 100 * 950e-6)
    assert cost.prefill(load, 1000, 1000) == 0.0


def test_congestion_has_no_price_until_most_ranks_are_busy_most_of_the_time() -> None:
    congestion = Congestion()
    prices = []
    for share in (0.0, 0.5, 0.8, 0.95, 1.0):
        for _ in range(300):
            congestion.arrival(share)
        prices.append(congestion.price)
    assert prices[0] == 0
    assert prices[1] < 0.1
    assert 2 < prices[2] < 5
    assert 15 < prices[3] < 30
    assert 50 < prices[4] < 61
    for _ in range(20):
        congestion.arrival(0.0)
    assert congestion.price < 0.1


def test_an_unknown_policy_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match="kv, least_loaded, power_of_two, round_robin, random"):
        make_policy("fastest", COST, Random(1))


@pytest.mark.parametrize("name", POLICIES)
def test_a_single_target_is_chosen(name: str) -> None:
    (only,) = targets(1)
    assert make_policy(name, COST, Random(1)).choose([only], Ask(10, {}, 0.0)) is only


def test_kv_weighs_cache_against_queue() -> None:
    a, b, c = targets(3)
    policy = make_policy("kv", COST, Random(1))
    assert policy.choose([a, b, c], Ask(500, {b.source: 400, c.source: 300}, 0.0)) is b
    queue(b, 0.05)
    assert policy.choose([a, b, c], Ask(500, {b.source: 400, c.source: 300}, 0.0)) is b
    queue(b, 0.1)
    assert policy.choose([a, b, c], Ask(500, {b.source: 400, c.source: 300}, 0.0)) is c
    assert policy.choose([a, b, c], Ask(500, {b.source: 400, c.source: 300}, price=1.0)) is b
    c.load.sequences = 9
    assert policy.choose([a, b, c], Ask(500, {c.source: 300}, 0.0)) is a


@pytest.mark.parametrize("name", ["kv", "least_loaded", "round_robin"])
def test_ties_go_to_the_least_recently_used(name: str) -> None:
    fleet = targets(4)
    policy = make_policy(name, COST, Random(1))
    chosen = []
    for turn in range(1, 9):
        target = policy.choose(fleet, Ask(100, {}, 0.0))
        target.last_used = turn
        chosen.append(target.key.worker)
    assert chosen == ["w3", "w2", "w1", "w0"] * 2


def test_least_loaded_ignores_the_cache() -> None:
    a, b = targets(2)
    a.load.sequences = 1
    assert (
        make_policy("least_loaded", COST, Random(1)).choose([a, b], Ask(10_001, {a.source: 10_000}, 0.0)) is b
    )


def test_power_of_two_avoids_the_most_loaded_and_spreads_the_rest() -> None:
    fleet = targets(5)
    fleet[2].load.sequences = 50
    policy = make_policy("power_of_two", COST, Random(1))
    chosen: Counter[str] = Counter()
    for turn in range(1, 401):
        target = policy.choose(fleet, Ask(100, {}, 0.0))
        target.last_used = turn
        chosen[target.key.worker] += 1
    assert chosen["w2"] == 0
    assert min(chosen[name] for name in ("w0", "w1", "w3", "w4")) > 50


def test_random_reaches_everybody_and_a_seed_repeats_it() -> None:
    fleet = targets(3)
    policy = make_policy("random", COST, Random(5))
    first = [policy.choose(fleet, Ask(1, {}, 0.0)).key for _ in range(60)]
    assert set(first) == {target.key for target in fleet}
    again = make_policy("random", COST, Random(5))
    assert first == [again.choose(fleet, Ask(1, {}, 0.0)).key for _ in range(60)]


@pytest.mark.parametrize("name", ["kv", "least_loaded", "power_of_two"])
def test_whoever_fails_at_once_is_not_taken_for_idle(name: str) -> None:
    good, bad = targets(2)
    policy = make_policy(name, COST, Random(1))
    good.load.sequences = 3
    bad.load.failures.failed(10.0)
    ask = Ask(100, {bad.source: 90}, 10.1)
    assert policy.choose([good, bad], ask) is good
    assert policy.choose([good, bad], ask._replace(now=11.0)) is bad
    bad.load.failures.succeeded()
    assert policy.choose([good, bad], ask) is bad


def test_decode_workers_whose_links_hardly_differ_take_turns() -> None:
    fleet = targets(3)
    policy = make_policy("kv", COST, Random(1))
    ask = Ask(0, {}, transfer={"w0": 0.0100, "w1": 0.0105, "w2": 0.1})
    chosen = []
    for turn in range(1, 5):
        target = policy.choose(fleet, ask)
        target.last_used = turn
        chosen.append(target.key.worker)
    assert chosen == ["w1", "w0", "w1", "w0"]


def test_an_idle_fleet_whose_paces_hardly_differ_takes_turns() -> None:
    """Else the one that is faster by a hair would get every new conversation, and hold all of them."""
    near = targets(3)
    for number, target in enumerate(near):
        target.load.pace.factor = 1.0 + number / 1000
    kv = make_policy("kv", COST, Random(1))
    chosen = []
    for turn in range(6):
        target = kv.choose(near, Ask(1000, {}))
        target.last_used = turn + 1
        chosen.append(target.key.worker)
    assert sorted(chosen[:3]) == sorted(chosen[3:]) == ["w0", "w1", "w2"]


def test_of_costs_that_hardly_differ_the_holder_wins_however_recently_it_was_used() -> None:
    near = targets(2)
    near[0].last_used, near[1].last_used = 9, 1
    kv = make_policy("kv", COST, Random(1))
    assert kv.choose(near, Ask(1000, {near[0].source: 1})) is near[0]
