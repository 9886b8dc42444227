"""The timing model: how long a step of the engine takes."""

from __future__ import annotations

import random

from simulator.settings import SimulatorSettings


class Timing:
    """Seconds of a step, by what is in it.

    Prompt tokens cost by their number; decoding costs the step itself and something for each sequence. Both
    add up in a step that has both, so a piece of prompt holds up the streams beside it. `jitter` spreads each
    step evenly around that, the same way in every run; `speedup` divides it.
    """

    def __init__(self, settings: SimulatorSettings) -> None:
        self._settings = settings
        self._random = random.Random(0)

    def step(self, prompt_tokens: int, decoding: int) -> float:
        """Seconds of a step that computes `prompt_tokens` of prompts and goes on with `decoding` answers."""
        settings = self._settings
        seconds = prompt_tokens * settings.prefill_seconds_per_token
        if decoding:
            seconds += settings.decode_seconds_per_step + decoding * settings.decode_seconds_per_sequence
        if settings.jitter:
            seconds *= 1 + settings.jitter * self._random.uniform(-1, 1)
        return seconds / settings.speedup
