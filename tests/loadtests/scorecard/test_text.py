"""The entries on text, each broken on purpose: work is added to what it measures, and it must turn false."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from gateway.tokens.prompts import EncodedPrompt
from gateway.tokens.tokenizer import Tokenizer
from loadtests.scorecard.evaluate import Measurement
from loadtests.scorecard.text import FORMAT, TEXT_ENTRIES, Subject, TextEntry, run_text
from loadtests.scorecard.text_material import TOOLS
from parsers.base import Chat, EncodedChat, OutputEvent, OutputOptions, OutputParser, Piece
from parsers.kimi_k3.parser import KimiK3Parser

PARSE_US = 2
"""Microseconds of CPU for each token, where a token of the bare loop takes a third of one."""
PARSE_US_PER_EARLIER_TOKEN = 0.0002
ENCODE_MS = 100
TOKENIZE_MS = 100


def burn(seconds: float) -> None:
    """Real CPU time of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class SlowParser(KimiK3Parser):
    """Slow from the start, and slower with each token."""

    _seen = 0

    def feed(self, token_ids: Sequence[int]) -> Sequence[OutputEvent]:
        self._seen += 1
        burn((PARSE_US + self._seen * PARSE_US_PER_EARLIER_TOKEN) / 1e6)
        return super().feed(token_ids)


class SlowTokenizer(Tokenizer):
    def encode_segments(self, pieces: Sequence[Piece]) -> EncodedPrompt:
        burn(TOKENIZE_MS / 1e3)
        return super().encode_segments(pieces)


def slow_parser(tokenizer: Tokenizer) -> OutputParser:
    return SlowParser(OutputOptions(thinking=True, tools=TOOLS), tokenizer.detokenizer())


def slow_encode(chat: Chat) -> EncodedChat:
    burn(ENCODE_MS / 1e3)
    return FORMAT.encode(chat)


def slow_tokenizer(loaded: Tokenizer) -> Tokenizer:
    return SlowTokenizer(loaded.vocabulary)


@pytest.fixture(scope="module")
def broken() -> dict[str, Measurement]:
    slow = Subject(parser=slow_parser, encode=slow_encode, tokenizer=slow_tokenizer)
    return {m.name: m for m in run_text(TEXT_ENTRIES, 1, slow)}


@pytest.mark.parametrize("entry", TEXT_ENTRIES, ids=lambda entry: entry.name)
def test_an_entry_turns_false_when_its_work_is_slowed(
    entry: TextEntry, broken: dict[str, Measurement]
) -> None:
    measurement = broken[entry.name]
    assert measurement.holds is False, measurement.how
    assert measurement.value is not None
    assert measurement.value > entry.target
    assert measurement.target == entry.target
