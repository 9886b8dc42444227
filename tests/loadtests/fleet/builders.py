"""Small requests and fleets for the tests of the simulation."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.fleet.engine import EngineSpec
from loadtests.fleet.request import BlockNames, Request
from loadtests.fleet.timing import Timing
from loadtests.fleet.workloads import make_request

BLOCK = 16
FLAT = Timing(prefill_base=0.0, per_token=0.001, decode_base=0.01)
"""A second per 1,000 prompt tokens, 10 ms a decode step."""


def small_engine(*, capacity: int = 64, state_blocks: int = 0, step_tokens: int = 64) -> EngineSpec:
    return EngineSpec(
        timing=FLAT,
        block_tokens=BLOCK,
        capacity_blocks=capacity,
        state_blocks=state_blocks,
        step_tokens=step_tokens,
        max_sequences=8,
    )


def request(
    names: BlockNames, *segments: tuple[object, int], output: int = 4, arrival: float = 0.0
) -> Request:
    """A request with a new answer."""
    return make_request(names, arrival, segments, (("answer", names.fresh()), output))


def spread(requests: Sequence[Request]) -> int:
    """Distinct blocks of all requests."""
    return len({block for each in requests for block in each.blocks})
