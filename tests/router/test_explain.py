"""`Router.explain`: the same choice as `route`, with its reasons, and without a trace."""

from __future__ import annotations

import msgspec
import pytest

from router.explain import Candidate, Explanation
from router.messages import Variant, WorkerKey
from router.policy import POLICIES
from router.selector import Router
from router.target import Ask
from tests.router.test_selector import info, request, router_of
from tests.router.wire import state, stored, tokens


def by_worker(explanation: Explanation) -> dict[str, Candidate]:
    return {candidate.target.worker: candidate for candidate in explanation.candidates}


def test_each_candidate_has_its_depths_terms_and_verdict() -> None:
    router = router_of("a", "b", "c")
    router.apply(WorkerKey("a"), [stored([1, 2, 3], range(100, 106)), state([2])])
    router.apply(WorkerKey("b"), [stored([1], range(100, 102))])
    busy = router.route(request(exclude=frozenset({"a", "b"})))
    assert busy.target.worker == "c"
    explanation = router.explain(request())
    assert (explanation.policy, explanation.chosen, explanation.left_out) == ("kv", WorkerKey("a"), {})
    assert [candidate.target.worker for candidate in explanation.candidates] == ["a", "b", "c"]
    found = by_worker(explanation)
    assert (found["a"].cached_tokens, found["a"].rule) == (4, "state-exact")
    assert found["a"].by_rule == {"state-exact": 4, "attention-only": 6, "discount": 6}
    assert found["b"].by_rule == {"attention-only": 2, "discount": 2}
    assert found["a"].verdict == "chosen"
    assert found["b"].verdict == "as cheap, but holds less of it"
    assert found["c"].verdict == "0.0148 s more, most of it queue"
    for candidate in explanation.candidates:
        terms = candidate.terms
        assert candidate.seconds == pytest.approx(terms.total)
        assert terms.total == terms.queue + terms.prefill + terms.congestion + terms.decodes
        assert terms.transfer == terms.failures == 0.0
    assert msgspec.json.decode(msgspec.json.encode(explanation), type=Explanation) == explanation


@pytest.mark.parametrize("policy", POLICIES)
def test_it_foresees_every_choice_and_changes_none(policy: str) -> None:
    asked, unasked = (router_of("a", "b", "c", "d", policy=policy) for _ in range(2))
    for _ in range(20):
        explained = asked.explain(request()).chosen
        asked.explain(request(role="prefill"))
        assert asked.route(request()).target == explained == unasked.route(request()).target
    assert asked.snapshot_stats() == unasked.snapshot_stats()


def test_the_terms_are_those_of_the_choice() -> None:
    router = router_of("a", "b")
    for _ in range(5):
        router.route(request())
    for candidate in router.explain(request()).candidates:
        target = router._roster.targets[candidate.target]
        price = router._congestion["m", "aggregated"].price
        overlaps = {target.source: candidate.cached_tokens}
        cost = router._cost.seconds(target, Ask(candidate.prompt_tokens, overlaps, 0.0, price))
        assert price > 0
        assert candidate.seconds == pytest.approx(cost)
        assert candidate.terms.congestion == pytest.approx(price * candidate.terms.prefill)


def test_who_was_left_out_and_why() -> None:
    router = router_of("a", max_num_seqs=1)
    router.add_worker(info("b"))
    router.add_worker(info("c", models=["x"]))
    router.add_worker(info("d", role="decode", pool="p"))
    router.add_worker(info("e", role="decode", pool="q"))
    router.add_worker(info("f", role="prefill", pool="q"))
    router.route(request(exclude=frozenset({"b"})))
    explanation = router.explain(request())
    assert by_worker(explanation)["a"].verdict == "full: runs 1 of 1 sequences"
    assert explanation.left_out["c"] == "does not serve 'm'"
    explanation = router.explain(request(role="decode"))
    assert explanation.chosen == WorkerKey("e")
    assert explanation.candidates[0].by_rule == {}
    assert explanation.left_out["d"] == "no prefill worker of its pool is up"
    assert router.explain(request(exclude=frozenset({"a", "b"}))).chosen is None
    assert router.snapshot_stats().refused == 0
    assert Router("kv", seed=1).explain(request()).candidates == []


def test_ties_and_other_policies_have_words_too() -> None:
    verdicts = {candidate.verdict for candidate in router_of("a", "b").explain(request()).candidates}
    assert verdicts == {"chosen", "as cheap, but used more recently"}
    verdicts = {each.verdict for each in router_of("a", "b", policy="random").explain(request()).candidates}
    assert verdicts == {"chosen", "the policy random took another"}


def test_each_pool_has_the_prompt_in_its_own_encoding() -> None:
    router = Router("kv", seed=1)
    router.add_worker(info("a", pool="p"))
    router.add_worker(info("b", pool="q"))
    router.apply(WorkerKey("b"), [stored([1, 2], range(100, 104))])
    variants = [
        Variant(frozenset({"p"}), tokens(range(20))),
        Variant(frozenset({"q"}), tokens(range(100, 111))),
    ]
    found = by_worker(router.explain(request([], variants=variants)))
    assert (found["a"].prompt_tokens, found["a"].cached_tokens) == (20, 0)
    assert (found["b"].prompt_tokens, found["b"].cached_tokens) == (11, 4)
