from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.load import Load, LoadBook
from router.messages import WorkerKey

KEY = WorkerKey("w")


def sums(load: Load) -> tuple[int, int, int, int]:
    return load.queued_tokens, load.waiting, load.sequences, load.context_tokens


def test_a_reservation_from_choice_to_end() -> None:
    book = LoadBook()
    load = book.load_of(KEY)
    first = book.reserve(load, 100, 30)
    second = book.reserve(load, 50, 0)
    assert first != second
    assert sums(load) == (120, 2, 2, 150)
    book.first_token(first, None)
    assert sums(load) == (50, 1, 2, 150)
    book.release(first, None)
    assert sums(load) == (50, 1, 1, 50)
    book.release(second, None)  # it never had a first token
    assert sums(load) == (0, 0, 0, 0)
    assert book.open_reservations == book.ignored == 0


def test_what_comes_twice_or_late_is_counted_and_changes_nothing() -> None:
    book = LoadBook()
    load = book.load_of(KEY)
    number = book.reserve(load, 100, 0)
    book.first_token(number, None)
    book.first_token(number, None)
    book.release(number, None)
    assert book.ignored == 0
    book.release(number, None)
    book.first_token(number, None)
    book.release(999, None)
    assert book.ignored == 3
    assert sums(load) == (0, 0, 0, 0)


def test_a_load_outlives_its_rank_while_requests_are_open() -> None:
    book = LoadBook()
    load = book.load_of(KEY)
    number = book.reserve(load, 10, 0)
    book.drop(KEY)
    assert book.load_of(KEY) is load
    book.drop(KEY)
    book.release(number, None)
    assert sums(load) == (0, 0, 0, 0)
    assert book.load_of(KEY) is not load


def test_the_first_report_of_cached_tokens_counts() -> None:
    book = LoadBook()
    load = book.load_of(KEY)
    for overlap, at_first, at_end in ((10, 10, 99), (10, None, 4), (10, 20, None), (10, None, None)):
        number = book.reserve(load, 100, overlap)
        book.first_token(number, at_first)
        book.release(number, at_end)
    counts = book.overlap
    assert (counts.reported, counts.exact, counts.over, counts.under) == (3, 1, 1, 1)
    assert (counts.predicted_tokens, counts.reported_tokens) == (30, 34)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_everything_released_leaves_nothing(steps: list[tuple[int, int]]) -> None:
    book = LoadBook()
    loads = [book.load_of(WorkerKey("w", rank)) for rank in range(3)]
    made: list[int] = []
    for action, value in steps:
        if action < 2 or not made:
            made.append(book.reserve(loads[value % 3], 10 * value, value))
        elif action == 2:
            book.first_token(made[value % len(made)], value)
        else:
            book.release(made[value % len(made)], None)
        assert all(min(sums(load)) >= 0 for load in loads)
        assert sum(load.sequences for load in loads) == book.open_reservations
    for number in made:
        book.release(number, None)
    assert all(sums(load) == (0, 0, 0, 0) for load in loads)


def test_a_wait_shrinks_with_time_and_ends_with_first_tokens() -> None:
    book = LoadBook()
    load = book.load_of(KEY)
    assert load.wait(5.0) == 0.0
    first = book.reserve(load, 100, 0, seconds=2.0, now=10.0)
    second = book.reserve(load, 100, 0, seconds=1.0, now=11.0)
    assert load.wait(10.0) == pytest.approx(3.0)
    assert load.wait(11.5) == pytest.approx(1.5)
    book.first_token(first, None, now=12.5)
    assert load.wait(12.5) == pytest.approx(1.0)
    assert load.wait(13.0) == pytest.approx(0.5)
    book.release(second, None, now=13.0)
    assert load.wait(13.0) == 0.0


def test_whoever_hangs_does_not_look_idle() -> None:
    load = LoadBook().load_of(KEY)
    load.enqueue(1, 2.0, 0.0)
    load.enqueue(2, 1.0, 0.0)
    assert load.wait(2.0) == pytest.approx(1.1)
    assert load.wait(7.0) == pytest.approx(1.0 + 5.0)


def test_a_prompt_that_fails_in_the_queue_is_not_waited_for() -> None:
    book = LoadBook()
    load = book.load_of(KEY)
    first = book.reserve(load, 100, 0, seconds=2.0, now=0.0)
    second = book.reserve(load, 100, 0, seconds=1.0, now=0.0)
    third = book.reserve(load, 100, 0, seconds=0.5, now=0.0)
    book.release(second, None, now=1.0)
    assert load.wait(1.0) == pytest.approx(1.5)
    book.release(first, None, now=1.5)
    assert load.wait(1.5) == pytest.approx(0.5)
    book.release(third, None, now=1.5)
    assert load.wait(9.0) == 0.0


def test_a_book_with_a_clock_learns_paces_and_one_without_does_not() -> None:
    for learns in (True, False):
        book = LoadBook(learns=learns)
        load = book.load_of(KEY, "pool")
        for turn in range(500):
            number = book.reserve(load, 100, 0, seconds=1.0, now=3.0 * turn)
            book.first_token(number, None, now=3.0 * turn + 2.0)
        assert (load.pace.factor > 1.9) is learns
        book.reserve(load, 100, 0, seconds=1.0, now=9_000.0)
        assert load.wait(9_000.0) == pytest.approx(load.pace.factor)
        other = book.load_of(WorkerKey("other"), "pool")
        assert (other.pace.factor > 1.9) is learns


def test_first_tokens_are_compared_with_what_was_predicted() -> None:
    book = LoadBook(learns=True)
    load = book.load_of(KEY)
    for predicted, took in ((1.0, 1.5), (2.0, 1.0)):
        number = book.reserve(load, 100, 0, seconds=1.0, predicted=predicted, now=10.0)
        book.first_token(number, None, now=10.0 + took)
        book.release(number, None, now=20.0)
    sent = book.reserve(load, 100, 100, predicted=1.0, now=30.0)
    book.first_token(sent, None, now=39.0)  # nothing was prefilled: neither a pace nor a prediction to judge
    counts = book.first_tokens
    assert (counts.observed, counts.predicted_seconds, counts.observed_seconds) == (2, 3.0, 2.5)
    assert counts.error_seconds == pytest.approx(1.5)
    assert load.pace.factor < 1.5


def test_a_release_tells_whose_fault_it_was() -> None:
    book = LoadBook()
    load = book.load_of(KEY)
    for failed in (True, False, True):
        book.release(book.reserve(load, 10, 0), None, failed=failed)
    assert load.failures.in_a_row == 2
    book.first_token(book.reserve(load, 10, 0), None)
    assert load.failures.in_a_row == 0


def test_paces_are_apart_by_pool_and_role() -> None:
    book = LoadBook(learns=True)
    slow = book.load_of(KEY, "pool", "prefill")
    for turn in range(300):
        book.first_token(book.reserve(slow, 100, 0, seconds=1.0, now=3.0 * turn), None, now=3.0 * turn + 2.0)
    assert slow.pace.factor > 1.9
    assert book.load_of(WorkerKey("d"), "pool", "decode").pace.factor == 1.0
    assert book.load_of(WorkerKey("e"), "other", "prefill").pace.factor == 1.0


def test_a_report_that_cannot_be_counts_as_the_nearest_that_can() -> None:
    book = LoadBook()
    load = book.load_of(KEY)
    for told, counted in ((-5, 0), (10**15, 100)):
        number = book.reserve(load, 100, 0)
        assert book.release(number, told) == counted
    assert book.overlap.reported_tokens == 100
