"""The sliding minute against its definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.access.window import SECONDS, Use, Window

steps = st.lists(st.tuples(st.floats(0, 40), st.integers(0, 6), st.none() | st.integers(0, 8)), max_size=40)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(steps)
def test_any_minute_stays_within_the_limit_and_nothing_is_refused_that_fits(
    told: list[tuple[float, int, int | None]],
) -> None:
    clock, limit = Clock(), 10
    window = Window(limit, clock)
    uses: list[Use] = []
    for pause, amount, corrected in told:
        clock.now += pause
        used = sum(use.amount for use in uses if clock.now - use.at < SECONDS)
        taken = window.take(amount)
        assert isinstance(taken, Use) is (used + amount <= limit)
        if isinstance(taken, Use):
            uses.append(taken)
            if corrected is not None:
                window.correct(taken, corrected)


def test_the_wait_is_until_so_much_has_left_the_minute() -> None:
    clock = Clock()
    window = Window(3, clock)
    for at in (0.0, 10.0, 20.0):
        clock.now = at
        window.take(1)
    clock.now = 30.0
    assert window.take(1) == 30.0
    assert window.take(2) == 40.0
    assert window.take(4) == float("inf")
    clock.now = 60.0
    assert isinstance(window.take(1), Use)


def test_what_comes_to_light_after_the_minute_counts_from_now() -> None:
    clock = Clock()
    window = Window(10, clock)
    use = window.take(2)
    assert isinstance(use, Use)
    clock.now = 90.0
    window.correct(use, 9)
    window.correct(use, 9)
    assert window.take(4) == 60.0
    assert isinstance(window.take(3), Use)
    clock.now = 150.0
    assert isinstance(window.take(7), Use)
