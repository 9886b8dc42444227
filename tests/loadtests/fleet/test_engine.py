"""Steps of one engine: tokens computed once, chunks within the budget, blocks given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.fleet.engine import Engine, Progress, Running, Step
from loadtests.fleet.request import BlockNames
from loadtests.fleet.workloads import make_request
from tests.loadtests.fleet.builders import BLOCK, request, small_engine


def drain(engine: Engine) -> list[tuple[Step, Progress]]:
    """Run to the end: the steps that it took and what they led to."""
    taken = []
    while (step := engine.plan()) is not None:
        taken.append((step, engine.end(step)))
    return taken


def first_tokens(taken: list[tuple[Step, Progress]]) -> list[Running]:
    return [running for _, progress in taken for running in progress.first_tokens]


def test_a_prompt_is_computed_in_chunks_and_its_first_token_comes_with_the_last() -> None:
    engine = Engine(small_engine(step_tokens=64))
    engine.submit(0, request(BlockNames(BLOCK), ("a", 150), output=1))
    taken = drain(engine)
    assert [sum(chunk for _, chunk in step.chunks) for step, _ in taken] == [64, 64, 22]
    assert [len(progress.first_tokens) for _, progress in taken] == [0, 0, 1]
    assert [len(progress.finished) for _, progress in taken] == [0, 0, 1]
    assert engine.computed_tokens == 150
    assert engine.idle


def test_decoding_takes_from_the_budget_and_time_adds_up() -> None:
    engine = Engine(small_engine(step_tokens=64))
    names = BlockNames(BLOCK)
    engine.submit(0, request(names, ("a", 10), output=50))
    step = engine.plan()
    assert step is not None
    engine.end(step)
    engine.submit(1, request(names, ("b", 100), output=1))
    step = engine.plan()
    assert step is not None
    assert [chunk for _, chunk in step.chunks] == [63]
    assert len(step.decoding) == 1
    assert step.seconds == pytest.approx(63 * 0.001 + 0.01)
    assert step.repeats == 1


def test_steps_that_only_decode_are_planned_together_and_may_be_cut() -> None:
    engine = Engine(small_engine())
    engine.submit(0, request(BlockNames(BLOCK), ("a", 10), output=40))
    first = engine.plan()
    assert first is not None
    engine.end(first)
    stretch = engine.plan()
    assert stretch is not None
    assert stretch.repeats == 39
    stretch.repeats = 5
    assert engine.end(stretch).finished == []
    rest = engine.plan()
    assert rest is not None
    assert rest.repeats == 34


def test_what_is_cached_is_not_computed_again() -> None:
    engine = Engine(small_engine())
    names = BlockNames(BLOCK)
    engine.submit(0, request(names, ("system", 48), ("a", 10)))
    drain(engine)
    engine.submit(1, request(names, ("system", 48), ("b", 10)))
    taken = drain(engine)
    assert taken[0][1].first_tokens[0].cached_tokens == 48
    assert engine.computed_tokens == 58 + 10


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = Engine(small_engine())
    names = BlockNames(BLOCK)
    for number in range(2):
        engine.submit(number, request(names, ("a", 48)))
        drain(engine)
    assert engine.computed_tokens == 48 + 16


def test_a_conversation_goes_on_from_its_own_answer() -> None:
    engine = Engine(small_engine())
    names = BlockNames(BLOCK)
    text = [("a", 30), ("answer", 20)]
    engine.submit(0, make_request(names, 0.0, text[:1], text[1]))
    drain(engine)
    engine.submit(1, make_request(names, 0.0, [*text, ("b", 10)], ("more", 1)))
    assert first_tokens(drain(engine))[0].cached_tokens == (30 + 20 - 1) // BLOCK * BLOCK


def test_a_hybrid_model_hits_a_shared_prefix_from_the_third_request_on() -> None:
    engine = Engine(small_engine(state_blocks=2))
    names = BlockNames(BLOCK)
    cached = []
    for number in range(4):
        engine.submit(number, request(names, ("system", 48), (number, 40)))
        cached += [running.cached_tokens for running in first_tokens(drain(engine))]
    assert cached == [0, 0, 48, 48]


def test_a_hybrid_model_hits_the_end_of_an_equal_prompt_at_once() -> None:
    engine = Engine(small_engine(state_blocks=2))
    names = BlockNames(BLOCK)
    cached = []
    for number in range(2):
        engine.submit(number, request(names, ("a", 90)))
        cached += [running.cached_tokens for running in first_tokens(drain(engine))]
    assert cached == [0, 80]


def test_the_youngest_is_preempted_when_blocks_run_out_and_all_end() -> None:
    engine = Engine(small_engine(capacity=8))
    names = BlockNames(BLOCK)
    for number in range(3):
        engine.submit(number, request(names, (number, 30), output=40))
    order = [each.number for _, progress in drain(engine) for each in progress.finished]
    assert sorted(order) == [0, 1, 2]
    assert engine.preemptions > 0
    assert order[0] == 0
    assert engine.cache.free == 8


def test_a_request_that_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Engine(small_engine(capacity=4)).submit(0, request(BlockNames(BLOCK), ("a", 100)))


texts = st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 80), st.integers(1, 40))


@given(st.lists(texts, min_size=1, max_size=12), st.sampled_from([0, 2]), st.integers(20, 40))
def test_every_request_ends_once_and_no_block_is_lost(
    prompts: list[tuple[int, int, int, int]], state_blocks: int, capacity: int
) -> None:
    engine = Engine(small_engine(capacity=capacity, state_blocks=state_blocks))
    names = BlockNames(BLOCK)
    for number, (system, shared, own, output) in enumerate(prompts):
        engine.submit(number, request(names, (("s", system), shared), (number, own), output=output))
    first, finished, computed = [], [], 0
    while (step := engine.plan()) is not None:
        computed += sum(chunk for _, chunk in step.chunks)
        assert sum(chunk for _, chunk in step.chunks) + len(step.decoding) <= engine.spec.step_tokens
        progress = engine.end(step)
        first += [running.number for running in progress.first_tokens]
        finished += [running.number for running in progress.finished]
        assert engine.cache.blank + engine.cache.cached <= capacity
    assert sorted(first) == sorted(finished) == list(range(len(prompts)))
    assert computed == engine.computed_tokens
    assert engine.idle
    assert engine.cache.free == capacity
    if not engine.preemptions:
        assert computed <= sum(shared + own for _, shared, own, _ in prompts)
