"""A KV handle is good once, for its prompt, for a while."""

from __future__ import annotations

import pytest

from gateway.handoff.base import LEASE_SHARE, Handle, HandoffError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def handle(clock: Clock) -> Handle:
    return Handle({"k": b"1"}, b"1,2,3", lease_seconds=30, clock=clock)


def test_the_parameters_are_given_out_as_they_came() -> None:
    assert handle(Clock()).take(b"1,2,3") == {"k": b"1"}


def test_a_second_use_is_refused() -> None:
    used = handle(Clock())
    used.take(b"1,2,3")
    with pytest.raises(HandoffError, match="has been used"):
        used.take(b"1,2,3")


def test_another_prompt_is_refused_and_spends_the_handle() -> None:
    foreign = handle(Clock())
    with pytest.raises(HandoffError, match="another prompt"):
        foreign.take(b"1,2,4")
    with pytest.raises(HandoffError, match="has been used"):
        foreign.take(b"1,2,3")


@pytest.mark.parametrize(
    ("age", "good"), [(0.0, True), (LEASE_SHARE * 30, True), (LEASE_SHARE * 30 + 1, False)]
)
def test_a_handle_is_dropped_before_its_lease_ends(age: float, good: bool) -> None:
    clock = Clock()
    late = handle(clock)
    clock.now += age
    if good:
        assert late.take(b"1,2,3")
    else:
        with pytest.raises(HandoffError, match="too old"):
            late.take(b"1,2,3")
