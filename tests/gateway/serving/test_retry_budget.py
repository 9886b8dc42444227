"""Retries stay a share of the requests."""

from __future__ import annotations

from gateway.serving.retry_budget import MOST, SHARE, RetryBudget


def test_it_begins_full_and_is_filled_by_requests() -> None:
    budget = RetryBudget()
    assert sum(budget.take() for _ in range(1000)) == MOST
    for _ in range(100):
        budget.add_request()
    assert sum(budget.take() for _ in range(1000)) == 100 // SHARE


def test_it_saves_no_more_than_it_began_with() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.add_request()
    assert sum(budget.take() for _ in range(1000)) == MOST
