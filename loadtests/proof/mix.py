"""The requests: prompts of token ids that share, extend, cut and repeat each other. Pure.

An answer is known before it is given (the engine is made to say one token over and over), so that a next turn
can go on from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

FIRST_TOKEN, LAST_TOKEN = 10, 1199
"""Ids that every model here has, and no special one among them."""
FIRST_ANSWER, LAST_ANSWER = 1200, 1999
"""Of which answers are made, so that no two answers to a prompt begin alike."""
_RECENT = 12
_KINDS = {
    "fresh": 3,
    "shared": 4,
    "extended": 5,
    "exact": 2,
    "repeated": 2,
    "cut": 2,
    "salted": 2,
    "old": 2,
}
"""Kinds by how often they come."""


class Ask(msgspec.Struct, frozen=True):
    """One request."""

    kind: str
    prompt: Sequence[int]
    answer_token: int
    """Said over and over."""
    answer_tokens: int
    salt: str | None = None

    @property
    def told(self) -> list[int]:
        """The prompt and its answer."""
        return [*self.prompt, *[self.answer_token] * self.answer_tokens]


class Mix:
    """One client's requests, without end: a seed gives the same ones each time."""

    def __init__(self, seed: int, client: int = 0, block: int = 32) -> None:
        """`block` is the engine's block in tokens: "exact" prompts are multiples of it."""
        self._random = Random(f"{seed}-{client}")
        self._block = block
        self._system = self._tokens_of(Random(f"{seed}-system"), 5 * block + 7)
        """Begins the "shared" prompts of all clients."""
        self._family = self._tokens(4 * block + 11)
        """Begins some of this client's own."""
        self._past: list[Ask] = []

    def next(self) -> Ask:
        kinds = list(_KINDS) if self._past else ["fresh"]
        kind = self._random.choices(kinds, [_KINDS[kind] for kind in kinds])[0]
        ask: Ask = getattr(self, f"_{kind}")()
        self._past.append(ask)
        return ask

    def _fresh(self) -> Ask:
        return self._ask("fresh", self._tokens(self._random.randint(8, 18 * self._block)))

    def _shared(self) -> Ask:
        head = self._random.choice((self._system, self._family))
        return self._ask("shared", head + self._tokens(self._random.randint(1, 6 * self._block)))

    def _extended(self) -> Ask:
        before = self._random.choice(self._past[-_RECENT:])
        if len(before.prompt) > 40 * self._block:
            return self._fresh()
        turn = self._tokens(self._random.randint(1, 4 * self._block))
        return self._ask("extended", before.told + turn, before.salt)

    def _exact(self) -> Ask:
        """A multiple of the block: the engine computes the last token, and so the last block, again."""
        if self._random.random() < 0.5:
            before = self._random.choice(self._past[-_RECENT:])
            blocks = len(before.prompt) // self._block
            if blocks:
                return self._ask("exact", before.prompt[: blocks * self._block], before.salt)
        return self._ask("exact", self._tokens(self._random.randint(1, 12) * self._block))

    def _repeated(self) -> Ask:
        before = self._random.choice(self._past[-_RECENT:])
        return self._ask("repeated", before.prompt, before.salt)

    def _cut(self) -> Ask:
        """An earlier prompt up to somewhere, and then other words."""
        before = self._random.choice(self._past[-_RECENT:])
        kept = before.prompt[: self._random.randint(0, len(before.prompt))]
        return self._ask("cut", [*kept, *self._tokens(self._random.randint(1, 40))], before.salt)

    def _salted(self) -> Ask:
        """Words that were said without a salt, or with another."""
        before = self._random.choice(self._past[-_RECENT:])
        return self._ask("salted", before.prompt, self._random.choice(("red", "green", "blue")))

    def _old(self) -> Ask:
        """What was said long ago: evicted by now, wholly or in part, where the cache is small."""
        before = self._random.choice(self._past)
        return self._ask("old", before.prompt, before.salt)

    def _ask(self, kind: str, prompt: Sequence[int], salt: str | None = None) -> Ask:
        answer = self._random.randint(FIRST_ANSWER, LAST_ANSWER)
        return Ask(kind, prompt, answer, self._random.choice((1, 2, 3, 5, 8, 13, 34)), salt)

    def _tokens(self, count: int) -> list[int]:
        return self._tokens_of(self._random, count)

    @staticmethod
    def _tokens_of(random: Random, count: int) -> list[int]:
        return [random.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]
