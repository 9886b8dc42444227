from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import PoolSettings
from gateway.tokens.encodings import Encodings
from gateway.tokens.tokenizer import TokenizerError
from parsers.base import OutputOptions

NEW = PoolSettings(name="new", model_format="kimi_k3")
SAME = PoolSettings(name="same", model_format="kimi_k3")
OLD = PoolSettings(name="old", model_format="kimi_k3_rev_a")
PLAIN = PoolSettings(name="plain", model_format="plain")


def test_pools_with_the_same_pair_share_an_encoding() -> None:
    (encoding,) = Encodings.load([NEW, SAME]).all
    assert encoding.pools == {"new", "same"}


def test_formats_of_one_family_share_a_tokenizer() -> None:
    new, old, plain = Encodings.load([NEW, OLD, PLAIN]).all
    assert new.tokenizer is old.tokenizer
    assert plain.tokenizer is not new.tokenizer


def test_the_encodings_of_pools_are_found_and_all_when_none_is_known() -> None:
    encodings = Encodings.load([NEW, OLD])
    new, old = encodings.all
    assert encodings.of_pools({"old"}) == [old]
    assert encodings.of_pools({"new", "old"}) == [new, old]
    assert encodings.of_pools(()) == (new, old)


def test_an_unreadable_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="cannot read"):
        Encodings.load([NEW, PoolSettings(name="x", tokenizer=str(tmp_path), model_format="kimi_k3")])


def test_a_completion_is_read_as_plain_text_and_a_chat_by_the_format() -> None:
    (encoding,) = Encodings.load([NEW]).all
    ids = [*encoding.tokenizer.encode_text("ab").tolist(), 163_586]
    events = [encoding.parser(options).feed(ids) for options in (None, OutputOptions(thinking=True))]
    assert [type(event[0]).__name__ for event in events] == ["ContentDelta", "ReasoningDelta"]
