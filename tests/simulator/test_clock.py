"""How long a step takes."""

from __future__ import annotations

import pytest

from simulator.clock import Timing
from simulator.settings import SimulatorSettings

TIMES = {
    "prefill_seconds_per_token": 0.001,
    "decode_seconds_per_step": 0.01,
    "decode_seconds_per_sequence": 0.002,
}


@pytest.mark.parametrize(
    ("prompt_tokens", "decoding", "seconds"),
    [(0, 0, 0.0), (100, 0, 0.1), (0, 1, 0.012), (0, 5, 0.02), (100, 5, 0.12)],
)
def test_prompts_and_answers_add_up(prompt_tokens: int, decoding: int, seconds: float) -> None:
    assert Timing(SimulatorSettings(**TIMES)).step(prompt_tokens, decoding) == pytest.approx(seconds)
    fast = Timing(SimulatorSettings(**TIMES, speedup=10.0))
    assert fast.step(prompt_tokens, decoding) == pytest.approx(seconds / 10)


def test_jitter_spreads_evenly_and_alike_in_every_run() -> None:
    settings = SimulatorSettings(**TIMES, jitter=0.5)
    first, second = (
        [timing.step(100, 0) for _ in range(1000)] for timing in (Timing(settings), Timing(settings))
    )
    assert first == second
    assert 0.05 <= min(first) < 0.06
    assert 0.14 < max(first) <= 0.15


@pytest.mark.parametrize(
    "options", [{"jitter": 1.5}, {"jitter": -0.1}, {"decode_seconds_per_sequence": -1.0}]
)
def test_times_that_cannot_be(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="jitter"):
        SimulatorSettings(**options).check()
