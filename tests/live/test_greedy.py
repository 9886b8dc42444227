"""What the model says by itself is the same through the gateway as asked directly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.live.asker import user
from tests.live.rig import Rig, words
from tests.live.vocabulary import CONTROL, STUB

PROMPTS = 14
TOKENS = 16
FEWEST_COMPARED = 8
FEWEST_CHANGED = 4
"""Of the prompts; with such weights a third to most of the answers change with one token."""
FIRST_CONTROL = min(CONTROL.values()) - 2


def prompt(number: int) -> str:
    return words(60, seed=number)


def directly(rig: Rig, token_ids: Sequence[int]) -> list[int]:
    return rig.workers[0].greedy(token_ids, TOKENS)


@pytest.fixture(scope="module")
def expected(rig: Rig) -> dict[str, list[int]]:
    """Prompt text to greedy ids; those with control tokens, which no text shows, are left out."""
    asked = {text: directly(rig, rig.vocabulary.user_prompt(text)) for text in map(prompt, range(PROMPTS))}
    plain = {text: ids for text, ids in asked.items() if max(ids) < FIRST_CONTROL}
    assert len(plain) >= FEWEST_COMPARED
    return plain


def test_whole_answers_equal_the_worker_asked_directly(rig: Rig, expected: dict[str, list[int]]) -> None:
    for text, ids in expected.items():
        completion = rig.whole([user(text)], thinking=False, max_tokens=TOKENS)
        assert completion.choices[0].message.content == rig.vocabulary.text(ids), text
        assert completion.usage is not None
        assert completion.usage.completion_tokens == TOKENS
        assert completion.usage.prompt_tokens == len(rig.vocabulary.user_prompt(text)) - STUB


def test_streamed_answers_equal_the_worker_asked_directly(rig: Rig, expected: dict[str, list[int]]) -> None:
    for text, ids in expected.items():
        chunks = rig.stream([user(text)], thinking=False, max_tokens=TOKENS)
        content = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert content == rig.vocabulary.text(ids), text


def test_one_changed_prompt_token_changes_several_answers(rig: Rig, expected: dict[str, list[int]]) -> None:
    """So an encoder that is wrong in one token could not pass the two tests above."""
    changed = 0
    for text, ids in expected.items():
        token_ids = rig.vocabulary.user_prompt(text)
        middle = len(token_ids) // 2
        token_ids[middle] = (token_ids[middle] + 1) % 150_000
        changed += directly(rig, token_ids) != ids
    assert changed >= FEWEST_CHANGED, f"{changed} of {len(expected)}"


def test_another_word_through_the_gateway_changes_several_answers(
    rig: Rig, expected: dict[str, list[int]]
) -> None:
    changed = 0
    for text, ids in expected.items():
        completion = rig.whole([user(text + " extra")], thinking=False, max_tokens=TOKENS)
        changed += completion.choices[0].message.content != rig.vocabulary.text(ids)
    assert changed >= FEWEST_CHANGED, f"{changed} of {len(expected)}"
