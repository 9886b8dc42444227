"""The requests of the proof are those that it says, and the same for a seed."""

from __future__ import annotations

from itertools import pairwise

from loadtests.proof.mix import Ask, Mix
from loadtests.proof.score import shared

BLOCK = 32


def asks(seed: int = 3, client: int = 0, count: int = 300) -> list[Ask]:
    mix = Mix(seed, client, BLOCK)
    return [mix.next() for _ in range(count)]


def test_a_seed_gives_the_same_requests_and_clients_differ() -> None:
    assert asks() == asks()
    assert asks(client=1) != asks() != asks(seed=4)


def test_every_kind_comes_often() -> None:
    kinds = [ask.kind for ask in asks()]
    for kind in ("fresh", "shared", "extended", "exact", "repeated", "cut", "salted", "old"):
        assert kinds.count(kind) >= 10


def test_kinds_do_what_they_are_called() -> None:
    past: list[Ask] = []
    for ask in asks():
        longest = max((shared(ask, each) for each in past), default=0)
        if ask.kind == "exact":
            assert len(ask.prompt) % BLOCK == 0
        elif ask.kind == "extended":
            assert any(ask.prompt[: len(each.told)] == each.told for each in past)
        elif ask.kind in ("repeated", "old"):
            assert longest >= len(ask.prompt)
        elif ask.kind == "salted":
            assert ask.salt is not None
        past.append(ask)


def test_clients_begin_some_prompts_alike() -> None:
    heads = [
        max(shared(one, other) for one in asks(client=a) for other in asks(client=b))
        for a, b in pairwise(range(3))
    ]
    assert all(head >= 5 * BLOCK for head in heads)


def test_the_same_words_with_another_salt_share_nothing() -> None:
    one = Ask("fresh", [1, 2, 3], 9, 1)
    assert shared(one, one) == 4
    assert shared(one, Ask("salted", [1, 2, 3], 9, 1, "red")) == 0
