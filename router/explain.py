"""Why a prompt would go where it would go: `Router.explain`'s answer and its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from router.cost import CostModel, CostTerms
from router.messages import WorkerKey
from router.policy import tied_up_to
from router.roster import has_room
from router.rules import RuleKeeper
from router.target import Ask, Target
from router.variants import Found


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One rank that could take the prompt."""

    target: WorkerKey
    pool: str
    prompt_tokens: int
    """In the encoding of its pool."""
    cached_tokens: int
    """As the router predicts, by `rule`."""
    knowledge: str
    """How far what is known of the rank's cache can be trusted."""
    rule: str
    by_rule: Mapping[str, int]
    """What each hit rule predicts; empty where the prompt's KV cache is sent along."""
    seconds: float
    terms: CostTerms
    """What `seconds` consists of."""
    verdict: str
    """Why it is chosen or not."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What `route` would do now."""

    policy: str
    chosen: WorkerKey | None
    candidates: Sequence[Candidate]
    """The cheapest first."""
    left_out: Mapping[str, str]
    """Workers that could not take the prompt, and why."""


class Explainer:
    """Describes the candidates of one prompt."""

    def __init__(self, policy: str, cost: CostModel, rules: RuleKeeper, found: Found, ask: Ask) -> None:
        self._policy = policy
        self._ask = ask
        self._cost = cost
        self._rules = rules
        self._found = found

    def candidates(
        self, targets: Sequence[Target], roomy: Sequence[Target], chosen: Target | None
    ) -> list[Candidate]:
        """All of `targets`; the choice was among `roomy`."""
        free = {target.key for target in roomy}
        described = [
            self._candidate(target, "" if target.key in free else _passed_over(target), chosen)
            for target in targets
        ]
        return sorted(described, key=lambda candidate: (candidate.seconds, candidate.verdict != "chosen"))

    def _candidate(self, target: Target, full: str, chosen: Target | None) -> Candidate:
        found = self._found
        terms = self._cost.terms(target, self._ask)
        looked_up = found.looked_up(target)
        by_rule: Mapping[str, int] = {}
        if looked_up is not None:
            _, match = looked_up
            by_rule = self._rules.predicted(target.source, match)
        return Candidate(
            target=target.key,
            pool=target.info.pool,
            prompt_tokens=found.tokens(target),
            cached_tokens=found.overlap(target),
            knowledge=target.knowledge[0].value,
            rule=self._rules.shown(target.source),
            by_rule=by_rule,
            seconds=terms.total,
            terms=terms,
            verdict=full or self._verdict(target, terms, chosen),
        )

    def _verdict(self, target: Target, terms: CostTerms, chosen: Target | None) -> str:
        if chosen is None or target is chosen:
            return "chosen"
        if self._policy not in ("kv", "session"):
            return f"the policy {self._policy} took another"
        best = self._cost.terms(chosen, self._ask)
        more = terms.total - best.total
        if terms.total <= tied_up_to(best.total):
            held = self._ask.overlaps.get
            less = held(target.source, 0) < held(chosen.source, 0)
            return f"as cheap, but {'holds less of it' if less else 'used more recently'}"
        parts = {name: getattr(terms, name) - getattr(best, name) for name in CostTerms.__struct_fields__}
        worst = max(parts, key=parts.__getitem__)
        return f"{more:.4f} s more, most of it {worst}"


def _passed_over(target: Target) -> str:
    load = target.load
    if not has_room(target):
        return f"full: runs {load.sequences} of {target.capacity:.0f} sequences"
    return f"passed over: {load.queued_tokens} prompt tokens are queued there, or another suits better"
