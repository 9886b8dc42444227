"""Steps, planned and finished by hand: what is announced, kept, given back and preempted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from simulator.cache import Event, KVCache
from simulator.generation import Generation, Step
from simulator.groups import parse_groups
from simulator.hashing import chain, event_hash, root_digest
from simulator.output import Plan
from simulator.scheduler import Job, Scheduler

ROOT = root_digest("0")
SIZE = 4


class Steps:
    """One scheduler, and all that it gave."""

    def __init__(
        self, groups: str = "attention", blocks: int = 100, budget: int = 64, seqs: int = 16
    ) -> None:
        self.cache = KVCache(blocks, SIZE, ROOT, parse_groups(groups), budget)
        self.scheduler = Scheduler(self.cache, seqs, budget)
        self.said: list[Step] = []
        self.batches: list[list[Event]] = []
        self.before_step: Callable[[], None] = lambda: None

    def add(self, prompt: Sequence[int], output: Sequence[int] = (7,), **options: Any) -> Job:
        plan = Plan(list(output), "stop", None)
        fields: dict[str, Any] = {
            "index": 0,
            "token_ids": list(prompt),
            "plan": plan,
            "tokens_per_step": 1,
        } | options
        fields["digests"] = chain(ROOT, prompt, SIZE)
        job = Job(Generation(**fields), self.cache, 0.0)
        self.scheduler.add(job)
        return job

    def step(self) -> list[tuple[Job, int]]:
        """The shares of one step."""
        self.before_step()
        batch = self.scheduler.plan(0.0)
        self.batches.append(self.cache.take_events())
        self.said += [step for _, step in self.scheduler.finish(batch)]
        return [(share.job, share.tokens) for share in batch.shares]

    def run(self) -> list[list[tuple[Job, int]]]:
        """All steps until nothing is left."""
        shares = []
        while self.scheduler.busy:
            shares.append(self.step())
            assert len(shares) < 1000
        return shares

    def serve(self, prompt: Sequence[int], output: Sequence[int] = (7,), **options: Any) -> int:
        """A request alone: its cached tokens."""
        job = self.add(prompt, output, **options)
        self.run()
        return job.generation.cached_tokens

    def stored(self, group: int) -> list[int]:
        """Hashes that a group has announced, in order."""
        events = [event for batch in self.batches for event in batch]
        kept = [event for event in events if event["type"] == "BlockStored" and event["group_idx"] == group]
        return [value for event in kept for value in event["block_hashes"]]


def _hashes(prompt: Sequence[int], *depths: int) -> list[int]:
    digests = chain(ROOT, prompt, SIZE)
    return [event_hash(digests[depth - 1]) for depth in depths]


def test_a_prompt_is_computed_in_pieces_beside_the_answers() -> None:
    steps = Steps(budget=8)
    first = steps.add(range(6), [1, 2, 3, 4])
    steps.step()
    second = steps.add(range(50, 65), [9])
    assert [steps.step() for _ in range(3)] == [
        [(first, 1), (second, 7)],
        [(first, 1), (second, 7)],
        [(first, 1), (second, 1)],
    ]
    assert not steps.scheduler.busy
    assert [step.ids for step in steps.said] == [[1], [2], [3], [4], [9]]


def test_several_tokens_a_step_are_computed_in_it() -> None:
    steps = Steps()
    steps.add(range(5), list(range(20, 27)), tokens_per_step=3)
    assert [[tokens for _, tokens in shares] for shares in steps.run()] == [[7], [3], [1]]
    assert [step.ids for step in steps.said] == [[20, 21, 22], [23, 24, 25], [26]]
    assert [step.start for step in steps.said] == [0, 3, 6]
    assert steps.stored(0) == _hashes([*range(5), *range(20, 26)], 1, 2)


def test_an_answer_that_is_not_known_yet_starts_with_one_token() -> None:
    steps = Steps()
    steps.add(range(5), [20, 21, 22], tokens_per_step=3, rewrite=lambda digest: Plan([], "stop", None))
    assert steps.step()[0][1] == 5


def test_at_most_max_num_seqs_run_and_the_rest_keeps_its_order() -> None:
    steps = Steps(seqs=1)
    jobs = [steps.add([n] * 5, [n]) for n in range(3)]
    assert [[job for job, _ in shares] for shares in steps.run()] == [[job] for job in jobs]


def test_the_youngest_gives_its_blocks_to_the_oldest_and_starts_anew() -> None:
    steps = Steps(blocks=7)
    old = steps.add(range(11), [1] * 10)
    young = steps.add(range(50, 60), [2] * 6)
    steps.run()
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert [step.ids for step in steps.said if step.generation is young.generation] == [[2]] * 6
    assert young.generation.cached_tokens == 0
    assert steps.cache.usage() == 0


def test_a_request_that_does_not_fit_keeps_those_behind_it_waiting() -> None:
    steps = Steps(blocks=8)
    steps.add(range(12), [1] * 4)
    large = steps.add(range(50, 70))
    small = steps.add(range(80, 83))
    assert steps.step() != []
    assert list(steps.scheduler.waiting) == [large, small]
    steps.run()
    assert [step.generation for step in steps.said[-2:]] == [large.generation, small.generation]


def test_a_state_is_kept_before_the_last_token_and_at_a_junction() -> None:
    """A later request finds where two prompts part; the third one finds the state that the second left."""
    steps = Steps("attention+mamba")
    common = list(range(21))
    assert steps.serve([*common, *range(50, 60)]) == 0
    assert steps.stored(0) == _hashes([*common, *range(50, 60)], 7)
    assert steps.serve([*common, *range(70, 80)]) == 0
    assert steps.stored(0)[1:] == _hashes([*common, *range(70, 80)], 5, 7)
    assert steps.serve([*common, *range(90, 100)]) == 20
    assert steps.serve([*common, *range(70, 80)]) == 28


def test_a_prompt_of_whole_blocks_is_gone_on_with_from_the_block_before() -> None:
    steps = Steps("attention+mamba")
    assert steps.serve(range(16)) == 0
    assert steps.stored(0) == _hashes(range(16), 3)
    assert steps.serve(range(16)) == 12


def test_pieces_end_where_a_state_is_to_be_kept() -> None:
    steps = Steps("attention+mamba", budget=10)
    steps.add(range(31), [1, 2])
    assert [[tokens for _, tokens in shares] for shares in steps.run()] == [[8], [8], [8], [4], [3], [1]]


def test_a_state_of_this_step_is_for_the_next_one() -> None:
    """Two equal prompts at once: the state that the first one leaves is not there before its step ends."""
    steps = Steps("attention+mamba")
    first, second = steps.add(range(10)), steps.add(range(10))
    shares = steps.run()
    assert shares[0] == [(first, 8)]
    assert (second, 2) in shares[1]
    assert second.generation.cached_tokens == 8


def test_a_state_group_uses_two_blocks_at_most() -> None:
    steps = Steps("attention+mamba*3", budget=8)
    job = steps.add(range(60), [1] * 30)
    while steps.scheduler.busy:
        steps.step()
        used = [sum(block != 0 for block in table) for table in job.sequence.block_ids]
        assert all(count <= 2 for count in used[:3])


def test_a_window_gives_back_what_it_has_passed() -> None:
    steps = Steps("attention+sliding_window:9", budget=8)
    job = steps.add(range(60), [1] * 30)
    while len(steps.said) < 30:
        steps.step()
        window, full = job.sequence.block_ids
        assert sum(block != 0 for block in window) <= 5
        assert 0 not in full
    assert steps.serve(range(60)) == 56


def test_a_window_keeps_only_what_is_needed_to_go_on() -> None:
    steps = Steps("attention+sliding_window:9")
    steps.serve(range(30))
    assert steps.stored(0) == _hashes(range(30), 6, 7)
    assert steps.stored(1) == _hashes(range(30), *range(1, 8))
    spans = [event["token_ids"] for event in steps.batches[0]]
    assert spans == [list(range(28))] * 2


def test_reset_waits_for_the_blocks_or_takes_them() -> None:
    steps = Steps()
    job = steps.add(range(9), [1, 2, 3])
    steps.step()
    assert not steps.scheduler.reset(preempt=False)
    assert steps.scheduler.reset(preempt=True)
    assert list(steps.scheduler.waiting) == [job]
    steps.run()
    assert [step.ids for step in steps.said] == [[1], [2], [3]]
    assert steps.batches[1][0] == {"type": "AllBlocksCleared"}


def test_a_pace_of_its_own() -> None:
    steps = Steps()
    job = steps.add(range(5), [1, 2], step_seconds=1.0)
    other = steps.add(range(5), [3])
    assert [job for job, _ in steps.step()] == [other]
    assert steps.step() == []
    assert steps.scheduler.next_due(0.0) == 1.0
    batch = steps.scheduler.plan(1.0)
    assert [share.job for share in batch.shares] == [job]
    steps.scheduler.finish(batch)
    assert steps.scheduler.next_due(1.0) == 2.0


@pytest.mark.parametrize("groups", ["attention", "mla+mamba*2", "attention+sliding_window:9*2"])
@pytest.mark.parametrize("seed", range(5))
def test_skipping_steps_that_change_nothing_changes_nothing(groups: str, seed: int) -> None:
    """A sequence that always looks at its tables gives the same events and blocks as one that skips."""

    def history(*, skips: bool) -> tuple[list[list[Event]], list[list[int]]]:
        rng = random.Random(seed)
        steps = Steps(groups, blocks=40, budget=16)
        prompts = [[rng.randrange(2) for _ in range(rng.randrange(1, 30))] for _ in range(20)]
        jobs = [
            steps.add(
                prompt, [rng.randrange(9) for _ in range(rng.randrange(1, 30))], tokens_per_step=1 + n % 2
            )
            for n, prompt in enumerate(prompts)
        ]

        def look() -> None:
            for job in jobs:
                job.sequence._quiet = 0

        if not skips:
            steps.before_step = look
        steps.run()
        return steps.batches, [step.ids for step in steps.said]

    assert history(skips=True) == history(skips=False)
