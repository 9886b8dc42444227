"""Failures in a row count as work that waits, for a while."""

from __future__ import annotations

from router.failures import Failures


def test_each_failure_in_a_row_counts_twice_as_long_up_to_a_limit() -> None:
    failures = Failures()
    assert failures.seconds(0.0) == 0.0
    counted = []
    for _ in range(10):
        failures.failed(100.0)
        counted.append(failures.seconds(100.0))
    assert counted[:4] == [0.5, 1.0, 2.0, 4.0]
    assert counted[-1] == 30.0


def test_they_fade_and_a_success_ends_them() -> None:
    failures = Failures()
    failures.failed(10.0)
    assert failures.seconds(10.3) == 0.5 - (10.3 - 10.0)
    assert failures.seconds(11.0) == 0.0
    failures.failed(11.0)
    assert failures.in_a_row == 2
    failures.succeeded()
    assert (failures.in_a_row, failures.seconds(11.0)) == (0, 0.0)
