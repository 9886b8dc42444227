"""Prompts in flight: where they part from one that arrives, and on whom that counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.coming import Coming, common_depth
from router.evidence import HitRule
from router.hashing import PrefixChain, PrefixHasher
from router.index import PrefixIndex
from router.messages import Release, WorkerKey
from tests.router.test_selector import request, router_of
from tests.router.wire import state, stored, tokens

PROMPT = list(range(100, 121))
"""Ten whole blocks of two, and a token."""


def chain(ids: list[int]) -> PrefixChain:
    return PrefixChain(tokens(ids), 2, root=7)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_the_depth_in_which_two_prompts_agree(shared: int, one: int, other: int) -> None:
    head = list(range(2 * shared))
    first, second = chain(head + [1000] * 2 * one), chain(head + [2000] * 2 * other)
    assert common_depth(first, second) == shared
    assert len(first.hashes) <= max(4 * shared, 16)


class Bench:
    """An index with one source that has announced a block of two tokens."""

    def __init__(self, *, hybrid: bool = False) -> None:
        self.index = PrefixIndex(PrefixHasher(1))
        self.source = self.index.open(WorkerKey("w"))
        self.index.apply(self.source, [stored([1], [1, 2]), *([state([1])] if hybrid else [])])
        self.coming = Coming()

    def place(self, number: int, ids: list[int]) -> None:
        self.coming.placed(number, self.source, self.index.match(tokens(ids)))

    def found(self, ids: list[int]) -> int:
        return self.coming.found(self.index.match(tokens(ids))).get(self.source, 0)


def test_a_sibling_finds_what_it_shares_until_the_request_is_over() -> None:
    bench = Bench()
    bench.place(1, PROMPT)
    assert bench.found(PROMPT) == 20
    assert bench.found([*PROMPT[:13], *range(20)]) == 12
    assert bench.found([9, *PROMPT]) == 0
    bench.place(2, PROMPT[:9])
    bench.coming.ended(1)
    assert bench.found(PROMPT) == 8
    bench.coming.ended(2)
    bench.coming.ended(2)
    assert bench.found(PROMPT) == 0
    assert not bench.coming._by_first


def test_on_a_hybrid_a_prompt_counts_at_its_end_and_where_others_part() -> None:
    bench = Bench(hybrid=True)
    bench.index.apply(bench.source, [stored([11, 12, 13], PROMPT[:6])])
    bench.place(1, PROMPT)
    assert bench.found(PROMPT) == 20
    assert bench.found([*PROMPT[:17], *range(20)]) == 6, "attention was cached so far, and no state"
    assert bench.found([*PROMPT[:5], *range(20)]) == 0


def test_states_that_are_kept_only_at_the_end_of_requests_do_not_come_before() -> None:
    bench = Bench()
    bench.index.follow(bench.source, HitRule.FINISHED)
    bench.place(1, PROMPT)
    assert bench.found(PROMPT) == 0


def test_what_a_worker_lost_does_not_come() -> None:
    bench = Bench()
    bench.place(1, PROMPT)
    bench.index.clear(bench.source)
    bench.index.apply(bench.source, [stored([1], [1, 2])])
    assert bench.found(PROMPT) == 0


def test_a_burst_of_siblings_is_cheaper_where_the_first_of_them_went() -> None:
    router = router_of("a", "b", "c")
    for worker in ("a", "b", "c"):
        router.apply(WorkerKey(worker), [stored([1], [1, 2])])
    head = range(1_000, 3_001)
    first = router.route(request([*head, 0]))
    terms = {each.target: each.terms for each in router.explain(request([*head, 1])).candidates}
    (other, *_) = (key for key in terms if key != first.target)
    assert terms[first.target].prefill < 0.7 * terms[other].prefill
    second = router.route(request([*head, 2], exclude=frozenset({"a", "b", "c"} - {first.target.worker})))
    assert second.overlap_tokens == 0, "nothing is announced: no hit is predicted"
    router.release(Release(second.reservation, cached_tokens=0))
    assert router.snapshot_stats().overlap.exact == 1
    router.release(Release(first.reservation))
    terms = {each.target: each.terms for each in router.explain(request([*head, 1])).candidates}
    assert terms[first.target].prefill == terms[other].prefill
