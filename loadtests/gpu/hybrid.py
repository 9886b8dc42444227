"""A model with recurrent states: predicted against reported cached tokens, and whether hits change answers.

Each request is asked twice: as it is, and with a salt of its own, which makes the worker compute all of it.
A hit that starts from a wrong state would show in the text and in the likelihoods of the first token.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from loadtests.gpu.client import Answer, Client, body, random_ids
from loadtests.gpu.front import Front
from loadtests.gpu.record import Record
from loadtests.gpu.workers import Worker

EVENT_SECONDS = 0.15
"""For a request's events to arrive."""
MIXED = 60
SUSPECT = "kvgateway_router_worker_suspect_hits_total"


class Asked(msgspec.Struct):
    """A request and what came of it."""

    name: str
    tokens: int
    rule: str
    predicted: int
    by_rule: Mapping[str, int]
    reported: int
    equal_tokens: int
    """Of the greedy ones, until the first that differs from the salted answer's."""
    first_logprob_change: float
    """Largest change of a likely first token's logarithm of likelihood, against the salted answer."""

    @property
    def kind(self) -> str:
        """Whether it was a hit, and one that the announced states allow."""
        if not self.reported:
            return "no hit"
        return "suspect hit" if self.reported > self.by_rule.get("state-exact", 0) else "allowed hit"


def table_sequences(block: int, seed: int) -> Iterator[tuple[str, list[int]]]:
    """Shared prefixes of four blocks and more; a long prompt cut inside."""
    shared = random_ids(4 * block + 50, seed)
    for name, own in (("A", 400), ("B", 1_100), ("C", 300)):
        yield f"{name} shared + {own}", [*shared, *random_ids(own, seed * 10 + own)]
    long = random_ids(5 * block + 10, seed + 1)
    yield "E 5 blocks + 10", long
    yield "F cut at 3 blocks + 7", long[: 3 * block + 7]
    yield "G the same cut", long[: 3 * block + 7]


def mixed_sequences(block: int, seed: int) -> Iterator[tuple[str, list[int]]]:
    """Cuts of a few long prompts, some with an end of their own."""
    chance = random.Random(seed)
    bases = [random_ids(5 * block + chance.randrange(block), seed + 10 + number) for number in range(4)]
    for number in range(MIXED):
        base = chance.choice(bases)
        cut = chance.randrange(block, len(base) + 1)
        own = chance.choice((0, 7, 60, 600))
        yield f"mixed {number}", [*base[:cut], *random_ids(own, seed * 1000 + number)]


def ask_both_ways(front: Front, client: Client, name: str, prompt: list[int], salt: str) -> Asked:
    """One request through the gateway, then the same salted."""
    legs = front.explain(body(prompt))["legs"]
    (leg,) = [found for key, found in legs.items() if key != "decode"]
    chosen = next(each for each in leg["candidates"] if each["target"] == leg["chosen"])
    answer = client.post(body(prompt, logprobs=5))
    salted = client.post(body(prompt, logprobs=5, cache_salt=f"{salt} {name}"))
    error = answer.error or salted.error
    assert not error, error
    time.sleep(EVENT_SECONDS)
    return Asked(
        name=name,
        tokens=len(prompt),
        rule=chosen["rule"],
        predicted=chosen["cached_tokens"],
        by_rule=chosen["by_rule"],
        reported=answer.cached or 0,
        equal_tokens=_equal(answer, salted),
        first_logprob_change=_change(answer, salted),
    )


def hits(front: Front, name: str, worker: Worker, seed: int, record: Record) -> None:
    """Both sequences of the table and mixed requests, one after another."""
    client, block = front.client(), worker.block_size()
    asked = []
    for kind, sequence in (("table", table_sequences), ("mixed", mixed_sequences)):
        for what, prompt in sequence(block, seed):
            asked.append(ask_both_ways(front, client, what, prompt, name))
            if kind == "table":
                record("hybrid_request", front=name, block=block, **msgspec.to_builtins(asked[-1]))
    rules = sorted({rule for each in asked for rule in each.by_rule})
    record(
        "hybrid_hits",
        front=name,
        block=block,
        requests=len(asked),
        exact=sum(each.predicted == each.reported for each in asked),
        exact_by_rule={
            rule: sum(each.by_rule.get(rule) == each.reported for each in asked) for rule in rules
        },
        late_exact=[sum(each.predicted == each.reported for each in asked[-30:]), 30],
        rule_at_the_end=asked[-1].rule,
        suspect_hits=front.metrics().get(SUSPECT, 0.0),
        answers={kind: _summary(asked, kind) for kind in ("no hit", "allowed hit", "suspect hit")},
    )


def _summary(asked: Sequence[Asked], kind: str) -> Mapping[str, object]:
    of_kind = [each for each in asked if each.kind == kind]
    if not of_kind:
        return {"requests": 0}
    changes = [each.first_logprob_change for each in of_kind]
    return {
        "requests": len(of_kind),
        "first_token_equal": sum(each.equal_tokens > 0 for each in of_kind),
        "all_equal": sum(each.equal_tokens == 16 for each in of_kind),
        "logprob_change_median": round(statistics.median(changes), 4),
        "logprob_change_max": round(max(changes), 4),
    }


def _equal(answer: Answer, other: Answer) -> int:
    words, others = answer.text.split(), other.text.split()
    return next((n for n, (a, b) in enumerate(zip(words, others, strict=False)) if a != b), len(words))


def _change(answer: Answer, other: Answer) -> float:
    if not answer.logprobs or not other.logprobs:
        return float("nan")
    ours, theirs = answer.logprobs[0], other.logprobs[0]
    both = ours.keys() & theirs.keys()
    return round(max((abs(ours[token] - theirs[token]) for token in both), default=99.0), 4)
