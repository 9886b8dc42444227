"""Which hit rule a worker follows: the one that has explained its reported cached tokens.

The same model reuses caches differently from one engine, or one connector, to another, and events do not say
how. So each worker's rule is judged by what it predicted. Requests for which all rules predict the same tell
nothing and are skipped; older evidence fades.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

_FADING = 0.95
"""Weight that a loss keeps with each further telling request."""
_MARGIN = 1.5
"""Loss by which another rule must be better: one request alone changes nothing."""
_RATIO_WEIGHT = 0.1


class HitRule(StrEnum):
    """How much of a prompt that a worker holds counts as cached."""

    STATE = "state-exact"
    """Attention up to a block whose state every state group holds; all of it where there are none."""
    ATTENTION = "attention-only"
    """Attention, whatever states were announced."""
    FINISHED = "finished-request-end"
    """The deepest end of a prompt or a finished request that is a prefix: SGLang keeps states there."""
    DISCOUNT = "discount"
    """A learned share of the attention."""


class Predictions(NamedTuple):
    """Cached tokens of one prompt on one worker."""

    state: int
    attention: int
    finished: int | None = None
    """None where no end of a request is known."""


class Evidence:
    """What one worker has reported, against each rule."""

    __slots__ = ("_losses", "borne_out", "doubted", "ratio", "rule", "suspect_hits", "switches")

    def __init__(self) -> None:
        self.rule = HitRule.STATE
        self.ratio = 1.0
        """Share of the announced attention that was reported as cached."""
        self.borne_out = 1.0
        """Share of what the rule in use predicted that was reported as cached."""
        self.doubted = False
        """Whether the worker has ever reported less than its attention blocks promised."""
        self.switches = 0
        self.suspect_hits = 0
        """Hits that the announced states do not allow."""
        self._losses = dict.fromkeys(HitRule, 0.0)

    def predicted(self, predictions: Predictions) -> dict[HitRule, int]:
        """What each rule says."""
        attention = predictions.attention
        return {
            HitRule.STATE: predictions.state,
            HitRule.ATTENTION: attention,
            HitRule.FINISHED: attention if predictions.finished is None else predictions.finished,
            HitRule.DISCOUNT: int(attention * self.ratio),
        }

    def observe(self, predictions: Predictions, reported: int) -> bool:
        """Take in a report; answers whether another rule is followed from now on."""
        predicted = self.predicted(predictions)
        attention = predictions.attention
        if attention:
            self.doubted |= reported < attention
            self.ratio += _RATIO_WEIGHT * (min(reported / attention, 1.0) - self.ratio)
        if expected := predicted[self.rule]:
            self.borne_out += _RATIO_WEIGHT * (min(reported / expected, 1.0) - self.borne_out)
        if len(set(predicted.values())) == 1:
            return False
        for rule, tokens in predicted.items():
            self._losses[rule] = self._losses[rule] * _FADING + _loss(tokens, reported)
        best = min(self._losses, key=self._losses.__getitem__)
        if self._losses[self.rule] - self._losses[best] <= _MARGIN:
            return False
        self.rule = best
        self.switches += 1
        return True


def _loss(predicted: int, reported: int) -> float:
    """0 for exactly right, up to 1 for all wrong. A near miss still is one: the rules are exact."""
    if predicted == reported:
        return 0.0
    return 0.5 + 0.5 * abs(predicted - reported) / max(predicted, reported)
