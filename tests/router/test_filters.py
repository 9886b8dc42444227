"""Who may be chosen: labels, adapters, busy thresholds, and decode workers that compute a short rest."""

from __future__ import annotations

import pytest

from router.messages import NoWorkerError, WorkerKey
from router.options import RouterOptions
from router.selector import Router
from tests.router.test_selector import info, refusal, request, router_of
from tests.router.wire import stored


def test_only_workers_with_all_labels_are_eligible() -> None:
    router = Router("kv", seed=1)
    router.add_worker(info("a", labels={"zone": "north", "tier": "gold"}))
    router.add_worker(info("b", labels={"zone": "north"}))
    router.add_worker(info("c"))
    wanted = {"zone": "north", "tier": "gold"}
    assert {router.route(request(labels=wanted)).target.worker for _ in range(3)} == {"a"}
    assert {router.route(request(labels={"zone": "north"})).target.worker for _ in range(4)} == {"a", "b"}
    assert router.explain(request(labels=wanted)).left_out == dict.fromkeys(
        "bc", f"its labels are not {wanted}"
    )
    assert "labels" in refusal(router, labels={"zone": "south"})


def test_an_adapters_caches_are_its_own_and_only_its_workers_serve_it() -> None:
    router = Router("kv", seed=1)
    router.add_worker(info("a", models=["m", "tuned"], adapters=["tuned"]))
    router.add_worker(info("b", models=["m"]))
    router.apply(WorkerKey("a"), [stored([1, 2], range(100, 104), lora="tuned"), stored([9], [100, 101])])
    placement = router.route(request(model="tuned"))
    assert (placement.target.worker, placement.overlap_tokens) == ("a", 4)
    assert router.explain(request(model="tuned")).candidates[0].cached_tokens == 4
    assert router.explain(request(model="tuned")).left_out == {"b": "does not serve 'tuned'"}
    assert router.route(request(exclude=frozenset("b"))).overlap_tokens == 2


def test_who_has_a_long_queue_is_passed_over_while_others_have_not() -> None:
    router = Router("kv", seed=1, options=RouterOptions(busy_queued_tokens=1_000))
    for name in ("a", "b"):
        router.add_worker(info(name))
    long = range(1_000, 9_000)
    router.apply(WorkerKey("a"), [stored(range(4_000), long)])
    router.route(request(range(1, 1_002), exclude=frozenset("b")))
    explanation = router.explain(request(long))
    assert explanation.chosen == WorkerKey("b")
    verdicts = {each.target.worker: each.verdict for each in explanation.candidates}
    assert verdicts["a"].startswith("passed over: 1001 prompt tokens are queued there")
    router.route(request(range(1, 1_002), exclude=frozenset("a")))
    assert router.route(request(long)).target == WorkerKey("a"), "when all are busy the cheapest is taken"


@pytest.mark.parametrize(("most", "local"), [(0, False), (4, False), (5, True), (10, True)])
def test_a_decode_worker_computes_a_short_rest_itself(most: int, local: bool) -> None:
    router = Router("kv", seed=1, options=RouterOptions(local_prefill_tokens=most))
    for name, role in (("p", "prefill"), ("d0", "decode"), ("d1", "decode"), ("d2", "decode")):
        router.add_worker(info(name, role=role))
    router.apply(WorkerKey("d1"), [stored([1, 2, 3], range(100, 106))])
    explained = router.explain(request(role="decode"))
    placement = router.route(request(role="decode"))
    assert explained.chosen == placement.target
    assert placement.prefills is local
    assert (placement.target.worker == "d1") >= local
    assert placement.overlap_tokens == (6 if local else 0)
    queued = {each.key.worker: each.queued_tokens for each in router.snapshot_stats().targets}
    assert queued[placement.target.worker] == (5 if local else 0)


def test_a_short_prompt_that_nobody_holds_goes_to_a_pair() -> None:
    router = Router("kv", seed=1, options=RouterOptions(local_prefill_tokens=100))
    for name, role in (("p", "prefill"), ("d", "decode")):
        router.add_worker(info(name, role=role))
    assert not router.route(request(role="decode")).prefills
    assert router.route(request(role="prefill")).prefills


def test_who_is_unavailable_is_not_eligible() -> None:
    router = router_of("a")
    router.set_available("a", False)
    with pytest.raises(NoWorkerError, match="a: not available"):
        router.route(request())
