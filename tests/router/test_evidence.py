"""The hit rule of each worker, from what it announced and what it reported."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from router.events import AllBlocksCleared, BlockStored, KvEvent
from router.evidence import Evidence, HitRule, Predictions
from router.messages import FirstToken, Placement, Release, RouteRequest, TokenIds, WorkerInfo, WorkerKey
from router.selector import Router
from router.slices import slices
from router.stats import TargetStats
from tests.router.wire import captures, recorded_events, removed, state, stored, tokens

W = WorkerKey("w")
BLOCK = 544


class Worker:
    """A router with one worker: what it predicts, what then happens."""

    def __init__(self) -> None:
        self.router = Router("kv", seed=1)
        self.router.add_worker(WorkerInfo(worker="w", models=["m"]))

    def route(self, prompt: TokenIds, **fields: str) -> Placement:
        request = RouteRequest(request_id="r", model="m", token_ids=prompt, **fields)  # type: ignore[arg-type]
        return self.router.route(request)

    def serve(self, prompt: TokenIds, events: list[KvEvent], cached: int, output: int = 1) -> int:
        """A request one after another; answers the prediction."""
        placement = self.route(prompt)
        self.router.apply(W, events)
        self.router.release(Release(placement.reservation, output_tokens=output, cached_tokens=cached))
        return placement.overlap_tokens

    @property
    def stats(self) -> TargetStats:
        (target,) = self.router.snapshot_stats().targets
        return target


# Rules


def test_rules_that_predict_the_same_learn_nothing() -> None:
    evidence = Evidence()
    assert not any(evidence.observe(Predictions(0, 0), 500) for _ in range(50))
    assert evidence.rule is HitRule.STATE
    assert not evidence.doubted


def test_one_miss_changes_nothing_and_two_do() -> None:
    evidence = Evidence()
    assert not evidence.observe(Predictions(0, 100), 100)
    assert evidence.observe(Predictions(0, 100), 100)
    assert (evidence.rule, evidence.switches) == (HitRule.ATTENTION, 1)
    for _ in range(8):
        evidence.observe(Predictions(50, 100), 50)
    assert (evidence.rule, evidence.switches) == (HitRule.STATE, 2)


def test_now_and_then_wrong_is_better_than_never_right() -> None:
    """Lost races take a share of the hits; that is no discount."""
    evidence = Evidence()
    for number in range(100):
        evidence.observe(Predictions(100, 200), 0 if number % 4 == 0 else 100)
    assert evidence.rule is HitRule.STATE


def test_what_no_rule_explains_gets_a_discount() -> None:
    evidence = Evidence()
    for number in range(60):
        evidence.observe(Predictions(1000, 1000), 600 + number % 7)
    assert evidence.rule is HitRule.DISCOUNT
    assert 590 < evidence.predicted(Predictions(1000, 1000))[HitRule.DISCOUNT] < 610


# vLLM, 3 mamba groups and attention, blocks of 544


def chain_hashes(prompt: TokenIds, blocks: int) -> list[int]:
    return [hash(prompt[: (end + 1) * BLOCK].tobytes()) & (1 << 64) - 1 for end in range(blocks)]


def announced(prompt: TokenIds, states: list[int]) -> list[KvEvent]:
    """All whole blocks of the prompt and its answer, states at some ends."""
    prompt = np.append(prompt, np.arange(90_000, 90_100, dtype=np.uint32))
    blocks = len(prompt) // BLOCK
    hashes = chain_hashes(prompt, blocks)
    held = [hashes[depth - 1] for depth in states]
    return [
        *(state(held, group=group, block_size=BLOCK) for group in range(3)),
        stored(hashes, prompt[: blocks * BLOCK], group=3, block_size=BLOCK),
    ]


def prompts() -> dict[str, TokenIds]:
    numbers = np.arange(100_000, dtype=np.uint32)
    shared = numbers[: 4 * BLOCK + 50]
    fresh = numbers[50_000 : 50_000 + 5 * BLOCK + 10]
    cut = fresh[: 3 * BLOCK + 7]
    return {
        "A": np.append(shared, numbers[10_000:10_400]),
        "B": np.append(shared, numbers[20_000:21_100]),
        "C": np.append(shared, numbers[30_000:30_300]),
        "E": fresh,
        "F": cut,
        "G": cut,
    }


def sequence(worker: Worker, rows: list[tuple[str, list[int], int]]) -> list[int]:
    """The predictions of the requests of `rows`: name, depths of announced states, reported cached tokens."""
    own = prompts()
    return [worker.serve(own[name], announced(own[name], states), cached) for name, states, cached in rows]


def test_a_plain_hybrid_worker_keeps_to_its_announced_states() -> None:
    worker = Worker()
    predicted = sequence(
        worker,
        [("A", [5], 0), ("B", [4, 6], 0), ("C", [], 2176), ("E", [5], 0), ("F", [3], 0), ("G", [], 1632)],
    )
    assert predicted == [0, 0, 2176, 0, 0, 1632]
    stats = worker.stats
    assert (stats.hit_rule, stats.hit_rule_switches, stats.suspect_hits) == ("state-exact", 0, 0)


def test_a_hybrid_worker_behind_a_connector_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    rows: list[tuple[str, list[int], int]] = [
        ("A", [5], 0),
        ("B", [6], 2176),
        ("C", [], 2176),
        ("E", [5], 0),
        ("F", [], 1632),
        ("G", [], 1632),
    ]
    with caplog.at_level(logging.WARNING, "router.rules"):
        predicted = sequence(worker, rows)
    # B's hit cannot be foreseen; with C's there is evidence enough.
    assert predicted == [0, 0, 0, 0, 1632, 1632]
    stats = worker.stats
    assert (stats.hit_rule, stats.hit_rule_switches) == ("attention-only", 1)
    assert stats.suspect_hits == 4
    assert "attention-only" in caplog.text
    worker.router.clear(W)
    sequence(worker, rows[:1])
    assert sequence(worker, rows[1:2]) == [2176]  # a restart does not make it forget


def test_a_state_stored_in_between_is_neither_suspect_nor_evidence() -> None:
    worker = Worker()
    own = prompts()
    for _ in range(3):
        worker.router.clear(W)
        worker.router.apply(W, announced(own["A"], [5]))
        placement = worker.route(own["B"])
        worker.router.apply(W, announced(own["C"], [4]))
        worker.router.release(Release(placement.reservation, cached_tokens=2176))
    assert (worker.stats.hit_rule, worker.stats.suspect_hits) == ("state-exact", 0)


def test_what_was_predicted_of_an_earlier_life_does_not_count() -> None:
    worker = Worker()
    own = prompts()
    for _ in range(5):
        worker.router.apply(W, announced(own["A"], [5]))
        placement = worker.route(own["B"])
        worker.router.clear(W)
        worker.router.release(Release(placement.reservation, cached_tokens=2176))
    assert (worker.stats.hit_rule_switches, worker.stats.suspect_hits) == (0, 0)


def test_cached_tokens_reported_with_the_first_token_count_once() -> None:
    worker = Worker()
    own = prompts()
    worker.router.apply(W, announced(own["A"], [5]))
    placement = worker.route(own["B"])
    worker.router.first_token(FirstToken(placement.reservation, cached_tokens=2176))
    worker.router.release(Release(placement.reservation))
    worker.router.release(Release(placement.reservation))
    assert worker.stats.suspect_hits == 1


def test_a_worker_that_left_takes_its_evidence_along() -> None:
    worker = Worker()
    own = prompts()
    worker.router.apply(W, announced(own["A"], [5]))
    placement = worker.route(own["B"])
    worker.router.add_worker(WorkerInfo(worker="w", models=["m"]))
    worker.router.release(Release(placement.reservation, cached_tokens=2176))
    assert worker.stats.suspect_hits == 0
    placement = worker.route(own["B"])
    worker.router.remove_worker("w")
    worker.router.release(Release(placement.reservation, cached_tokens=0))


def test_a_discount_applies_to_look_ups() -> None:
    worker = Worker()
    prompt = tokens(range(1000))
    worker.router.apply(W, [stored(list(range(1, 501)), range(1000))])
    for _ in range(60):
        worker.serve(prompt, [], 498)
    assert worker.stats.hit_rule == "discount"
    assert worker.route(prompt).overlap_tokens in range(480, 520)


# SGLang, hybrid, pages of one token: its own events


HYBRID = "sglang-0.5.23/hybrid_mamba"


def events_of(step: str) -> list[KvEvent]:
    return recorded_events(captures() / HYBRID / f"{step}.frames")


def ids_of(step: str) -> list[TokenIds]:
    """The tokens of each store of a step."""
    stores = [event for event in events_of(step) if isinstance(event, BlockStored)]
    return [np.frombuffer(event.token_ids, dtype=np.uint32) for event in stores]


def sglang_steps() -> list[tuple[str, TokenIds, int, int]]:
    """Step, prompt, cached tokens as reported, output tokens."""
    first = ids_of("01_A200")[0]
    turn, output = ids_of("10_turn1")
    second, answer = ids_of("11_turn2")
    next_turn = np.concatenate([turn, output, second])
    return [
        ("01_A200", first, 0, 2),
        ("02_share128", np.append(first[:128], ids_of("02_share128")[0]), 0, 2),
        ("03_share192", np.append(first[:192], ids_of("03_share192")[0]), 0, 2),
        ("04_A_again", first, 0, 2),
        ("05_share128_b", np.append(first[:128], ids_of("05_share128_b")[0]), 0, 2),
        ("06_decode100", first[:64], 0, 100),
        ("10_turn1", turn, 0, 8),
        ("11_turn2", next_turn, 207, len(answer) + 1),
        ("12_fork_mid_turn2", np.append(next_turn[:228], ids_of("12_fork_mid_turn2")[0]), 207, 8),
        ("13_fork100", np.append(first[:100], ids_of("13_fork100")[0]), 0, 8),
        ("14_fork100_b", np.append(first[:100], ids_of("14_fork100_b")[0]), 0, 8),
    ]


GIVEN_UP = {"13_fork100": 64, "14_fork100_b": 64}
"""Steps that go on from where the prompt of `06_decode100` ended: that state was gone, untold."""


def test_sglangs_hybrid_hits_end_where_requests_ended() -> None:
    worker = Worker()
    predicted = {
        step: worker.serve(prompt, events_of(step), cached, output)
        for step, prompt, cached, output in sglang_steps()
    }
    assert predicted == {
        "01_A200": 0,
        "02_share128": 128,  # taken for an attention model
        "03_share192": 192,
        "04_A_again": 0,  # found out
        "05_share128_b": 0,
        "06_decode100": 0,
        "10_turn1": 0,
        "11_turn2": 207,
        "12_fork_mid_turn2": 207,
        **GIVEN_UP,
    }
    stats = worker.stats
    assert (stats.hit_rule, stats.hit_rule_switches, stats.suspect_hits) == ("finished-request-end", 1, 0)
    # The answer to a prompt that was cached whole has one store, after the prompt's end.
    decoded = ids_of("06_decode100")[0]
    more = np.concatenate([sglang_steps()[0][1][:64], decoded, decoded[:5]])
    assert worker.route(more).overlap_tokens == 163
    worker.router.apply(W, [AllBlocksCleared()])
    assert worker.route(more).overlap_tokens == 0


def test_a_request_of_one_token_ends_at_its_prompt() -> None:
    worker = Worker()
    for step, prompt, cached, output in sglang_steps()[:6]:
        worker.serve(prompt, events_of(step), cached, output)
    turn, _ = ids_of("10_turn1")
    prefill = [event for event in events_of("10_turn1") if isinstance(event, BlockStored)][:1]
    worker.serve(turn, list(prefill), 0, output=1)
    assert worker.route(np.append(turn, turn[:9])).overlap_tokens == 200
    assert worker.route(turn).overlap_tokens == 0


# Ends of requests


def test_prompts_and_requests_end_where_stores_end() -> None:
    """A prompt that is cut where an earlier one ended: the state is there, though that answer went on."""
    worker = Worker()
    worker.router.add_worker(WorkerInfo(worker="w", models=["m"], states_at_ends=True))
    prompt, answer = tokens(range(100, 160)), tokens(range(20))
    first = stored(range(-60, 0), prompt, block_size=1)
    then = stored(range(1, 21), answer, parent=-1, block_size=1)
    worker.serve(prompt, [first, then], 0, output=21)
    assert worker.route(np.concatenate([prompt, answer, answer])).overlap_tokens == 80
    assert worker.route(np.concatenate([prompt, answer[:10], prompt])).overlap_tokens == 60
    assert worker.route(np.append(prompt[:50], answer)).overlap_tokens == 0
    worker.router.apply(W, [removed([-1])])
    assert worker.route(np.concatenate([prompt, answer[:10], prompt])).overlap_tokens == 0


def test_a_prompt_that_was_cached_whole_ends_where_the_router_knows() -> None:
    worker = Worker()
    worker.router.add_worker(WorkerInfo(worker="w", models=["m"], states_at_ends=True))
    prompt = tokens(range(100, 160))
    worker.serve(prompt, [stored(range(-60, 0), prompt, block_size=1)], 0)
    worker.serve(prompt[:40], [stored([7], [7], parent=-21, block_size=1)], 0, output=2)
    assert worker.route(np.append(prompt[:45], tokens([9]))).overlap_tokens == 40


def test_the_slices_of_a_store_have_one_end() -> None:
    worker = Worker()
    worker.router.add_worker(WorkerInfo(worker="w", models=["m"], states_at_ends=True))
    prompt = tokens(range(1000, 2500))
    for part in slices([stored(range(-1500, 0), prompt, block_size=1)]):
        worker.router.apply(W, part)
    assert worker.route(np.append(prompt, tokens([9]))).overlap_tokens == 1500
    assert worker.route(prompt).overlap_tokens == 0


def test_a_worker_that_says_so_follows_the_ends_from_the_start() -> None:
    worker = Worker()
    worker.router.add_worker(WorkerInfo(worker="w", models=["m"], states_at_ends=True))
    predicted = {
        step: worker.serve(prompt, events_of(step), cached, output)
        for step, prompt, cached, output in sglang_steps()
    }
    assert predicted == {step: cached for step, _, cached, _ in sglang_steps()} | GIVEN_UP
    assert (worker.stats.hit_rule, worker.stats.hit_rule_switches) == ("finished-request-end", 0)


def test_the_answer_may_be_told_before_the_events() -> None:
    worker = Worker()
    worker.router.add_worker(WorkerInfo(worker="w", models=["m"], states_at_ends=True))
    turn, _ = ids_of("10_turn1")
    prefill = [event for event in events_of("10_turn1") if isinstance(event, BlockStored)][:1]
    worker.serve(ids_of("01_A200")[0], events_of("01_A200"), 0, output=2)  # its events tell the block size
    worker.serve(turn, [], 0, output=1)
    worker.router.apply(W, list(prefill))
    assert worker.route(np.append(turn, turn[:9])).overlap_tokens == 200
