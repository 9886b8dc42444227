"""Our simulation beside Dynamo's own offline replay on a small trace; skipped where Dynamo is absent."""

from __future__ import annotations

import pytest

from loadtests.fleet.referee import (
    RefereeError,
    Setup,
    Verdict,
    ask_dynamo,
    ask_simulation,
    dynamo_python,
    judge_placements,
)
from loadtests.fleet.request import Request
from loadtests.fleet.workloads import chat

SETUP = Setup(workers=4)


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    try:
        dynamo_python()
    except RefereeError as error:
        pytest.skip(str(error))
    made = chat(7, 512, rate=3.0, duration=80.0).requests
    return sorted(made, key=lambda request: request.arrival)


@pytest.fixture(scope="module")
def dynamo(requests: list[Request]) -> dict[str, Verdict]:
    return ask_dynamo(requests, SETUP)


def test_with_dynamos_formula_and_engine_the_results_are_dynamos(
    requests: list[Request], dynamo: dict[str, Verdict]
) -> None:
    ours = {policy: ask_simulation(requests, SETUP, policy) for policy in dynamo}
    assert sorted(ours, key=lambda policy: ours[policy].mean) == sorted(
        dynamo, key=lambda policy: dynamo[policy].mean
    )
    for policy in dynamo:
        assert ours[policy].mean == pytest.approx(dynamo[policy].mean, rel=0.1)
        assert ours[policy].reuse == pytest.approx(dynamo[policy].reuse, abs=0.05)


def test_our_placements_are_better_than_dynamos_in_dynamos_engines(
    requests: list[Request], dynamo: dict[str, Verdict]
) -> None:
    placed = judge_placements(requests, SETUP, "kv")
    assert placed.mean < dynamo["dynamo"].mean
    assert placed.mean < dynamo["round_robin"].mean
