"""The proof in short: what the router predicts is what a hybrid model's engine reports, to the token.

`python -m tests.live.routing` is the whole of it, with workers that are restarted under load.
"""

from __future__ import annotations

from loadtests.proof.score import table
from tests.live.routing.rig import RoutingRig

REQUESTS = 60


def test_predicted_is_reported_and_attention_alone_promises_too_much(rig: RoutingRig) -> None:
    run = rig.sequential(REQUESTS, restart=False)
    counts = table(run.outcomes)
    assert not run.failed
    assert counts.requests == REQUESTS
    assert [each for each in run.outcomes if not each.exact] == []
    assert counts.hits >= 10
    assert counts.attention_over >= 3
