"""Who has been served by a rank goes to it again, as far as it may be chosen."""

from __future__ import annotations

import pytest

from router.messages import FullError, WorkerKey
from router.options import RouterOptions
from router.selector import Router
from router.sessions import SessionMode
from tests.router.test_selector import info, request
from tests.router.wire import stored


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def router_of(mode: SessionMode, clock: Clock | None = None, **fields: int) -> Router:
    options = RouterOptions(session_mode=mode, session_seconds=10.0, busy_queued_tokens=1_000)
    router = Router("session", seed=1, clock=clock or Clock(), options=options)
    for name in ("a", "b", "c"):
        router.add_worker(info(name, **fields))
    return router


def placed(router: Router, session: str | None, **fields: object) -> str:
    wanted = request(session=session, **fields)
    explained = router.explain(wanted).chosen
    target = router.route(wanted).target
    assert target == explained
    return target.worker


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_a_session_stays_where_it_was_though_others_are_idle(mode: SessionMode) -> None:
    router = router_of(mode)
    first = placed(router, "s")
    assert {placed(router, "s") for _ in range(5)} == {first}
    assert len({placed(router, f"other {n}") for n in range(3)} | {placed(router, None)}) > 1


def test_without_a_session_the_cheapest_is_taken() -> None:
    router = router_of("soft")
    router.apply(WorkerKey("b"), [stored([1, 2, 3], range(100, 106))])
    assert placed(router, "new") == "b"


def test_a_session_is_forgotten_with_time_and_moves_when_its_worker_goes() -> None:
    clock = Clock()
    router = router_of("hard", clock)
    first = placed(router, "s")
    clock.now = 9.0
    assert placed(router, "s") == first
    clock.now = 18.0
    assert placed(router, "s") == first, "each request renews it"
    clock.now = 29.0
    assert placed(router, "s") != first
    second = placed(router, "s")
    router.remove_worker(second)
    third = placed(router, "s")
    assert third != second
    router.add_worker(info(second))
    assert placed(router, "s") == third


def test_hard_waits_for_a_full_worker_and_soft_does_not() -> None:
    for mode in ("hard", "soft"):
        router = router_of(mode, max_num_seqs=1)
        first = placed(router, "s")
        if mode == "hard":
            assert placed(router, "s") == first
            with pytest.raises(FullError):
                router.route(request(session="s", at_once=True))
        else:
            assert placed(router, "s", at_once=True) != first


def test_soft_leaves_a_busy_worker() -> None:
    router = router_of("soft")
    first = placed(router, "s")
    router.route(request(range(1, 1_500), exclude=frozenset("abc") - {first}))
    assert placed(router, "s") != first


def test_a_pair_keeps_its_decode_and_its_prefill_worker() -> None:
    router = Router("session", seed=1)
    for n in range(3):
        router.add_worker(info(f"p{n}", role="prefill"))
        router.add_worker(info(f"d{n}", role="decode"))
    legs = {(placed(router, "s", role="prefill"), placed(router, "s", role="decode")) for _ in range(4)}
    assert len(legs) == 1


def test_other_policies_know_no_sessions() -> None:
    router = Router("round_robin", seed=1)
    for name in ("a", "b"):
        router.add_worker(info(name))
    assert placed(router, "s") != placed(router, "s")
