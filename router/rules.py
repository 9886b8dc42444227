"""What each rule predicted for a request, kept until its worker reports; rules change by the evidence."""

from __future__ import annotations

import logging
from typing import NamedTuple

from router.evidence import Evidence, HitRule, Predictions
from router.holdings import Source
from router.index import PrefixIndex
from router.lookup import Match
from router.messages import TokenIds, WorkerKey

logger = logging.getLogger(__name__)


class Prompt(NamedTuple):
    """A request's prompt as its worker takes it."""

    token_ids: TokenIds
    cache_salt: str | None
    lora: str | None


class _Placed(NamedTuple):
    source: Source
    evidence: Evidence
    prompt: Prompt
    predictions: Predictions
    ends: list[int]
    """Prefixes that name the whole prompt; empty where the ends of requests do not matter."""
    life: int


class RuleKeeper:
    """The evidence of all ranks, and the predictions of the requests under way."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._evidence: dict[WorkerKey, Evidence] = {}
        self._placed: dict[int, _Placed] = {}
        """By reservation."""

    def open(self, source: Source, states_at_ends: bool = False) -> None:
        """A rank that nothing is known of, or only that it keeps states where requests end."""
        evidence = self._evidence[source.key] = Evidence()
        if states_at_ends:
            evidence.rule, evidence.doubted = HitRule.FINISHED, True
            self._index.keep_ends(source)
            self._index.follow(source, HitRule.FINISHED)

    def close(self, key: WorkerKey) -> None:
        """The rank is gone; what its requests report counts nowhere."""
        self._evidence.pop(key, None)

    def of(self, key: WorkerKey) -> Evidence:
        """The evidence of a rank that is open."""
        return self._evidence[key]

    def predicted(self, source: Source, match: Match) -> dict[str, int]:
        """Cached tokens by each rule that can apply to the source, in words."""
        predictions = match.predictions(source)
        predicted = self._evidence[source.key].predicted(predictions)
        if predictions.finished is None:
            del predicted[HitRule.FINISHED]
        if not source.rule:
            del predicted[HitRule.STATE]
        return {rule.value: tokens for rule, tokens in predicted.items()}

    def shown(self, source: Source) -> str:
        """The rule in use, in words."""
        if source.hit_rule is HitRule.STATE and not source.rule:
            return HitRule.ATTENTION.value
        return source.hit_rule.value

    def placed(self, reservation: int, source: Source, match: Match, prompt: Prompt) -> None:
        """A request goes to this source; `match` is of this very moment."""
        evidence = self._evidence.get(source.key)
        if evidence is None:
            return
        ends = match.prompt_ends(source) if source.ends is not None and evidence.doubted else []
        predictions = match.predictions(source)
        self._placed[reservation] = _Placed(source, evidence, prompt, predictions, ends, source.life)

    def released(self, reservation: int, output_tokens: int, cached_tokens: int | None) -> None:
        """The request is over."""
        placed = self._placed.pop(reservation, None)
        if placed is None or placed.life != placed.source.life:
            return  # What was predicted is lost: the worker has begun anew.
        if output_tokens > 0:
            for end in placed.ends:
                self._index.finish(placed.source, end)
        if cached_tokens is not None:
            self._judge(placed, cached_tokens)

    def _judge(self, placed: _Placed, reported: int) -> None:
        source, evidence, predictions = placed.source, placed.evidence, placed.predictions
        if source.rule and reported > predictions.state:
            if self._holds_state(placed, reported):
                return  # It was stored between the choice and the prefill: no rule could know.
            evidence.suspect_hits += 1
        before = evidence.rule
        if evidence.observe(predictions, reported):
            self._index.follow(source, evidence.rule)
            logger.warning(
                "%s/%d: its cached tokens are now predicted by %s, which explains them better than %s",
                source.key.worker,
                source.key.dp_rank,
                evidence.rule.value,
                before.value,
            )
        source.discount = evidence.ratio

    def _holds_state(self, placed: _Placed, tokens: int) -> bool:
        """Whether the announced states allow a hit of just so many tokens by now."""
        prompt = placed.prompt
        head = prompt.token_ids[: tokens + 1]
        match = self._index.match(head, prompt.cache_salt, prompt.lora)
        return match.predictions(placed.source).state == tokens
