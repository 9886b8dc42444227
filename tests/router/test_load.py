from __future__ import annotations

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
