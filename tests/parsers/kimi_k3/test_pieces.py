"""What is remembered of single tokens."""

from __future__ import annotations

import pytest

from parsers.base import ContentDelta, ReasoningDelta, ToolArgumentsDelta
from parsers.kimi_k3 import pieces
from parsers.kimi_k3.markers import END_OF_MSG_ID, SEP_ID
from tests.parsers.kimi_k3.material import TOKENIZER, ids_of

QUOTE = ids_of('"')[0]


def test_events_of_a_token_are_made_once_for_a_vocabulary() -> None:
    for_one = pieces.reasoning_of(TOKENIZER.detokenizer())[QUOTE]
    assert for_one == (ReasoningDelta('"'),)
    assert pieces.reasoning_of(TOKENIZER.detokenizer())[QUOTE] is for_one


def test_each_state_and_call_has_its_own_events() -> None:
    detokenizer = TOKENIZER.detokenizer()
    assert pieces.content_of(detokenizer)[QUOTE] == (ContentDelta('"'),)
    for call in range(7):
        assert pieces.string_pieces_of(detokenizer, call)[QUOTE] == (ToolArgumentsDelta(call, '\\"'),)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_LIMIT", 2)
    known = pieces._Shown(TOKENIZER.detokenizer().texts, ContentDelta)
    assert [known[token] for token in range(65, 75)] == [known[token] for token in range(65, 75)]
    assert len(known) == 2


@pytest.mark.parametrize("token", [SEP_ID, END_OF_MSG_ID, 0xE2, -1, 163_584, 2**40])
def test_a_token_that_is_no_text_has_none(token: int) -> None:
    assert TOKENIZER.detokenizer().texts[0xE2] is None
    assert pieces.content_of(TOKENIZER.detokenizer())[token] is None
