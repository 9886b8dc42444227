from __future__ import annotations

import numpy as np
import pytest

from gateway.tokens.prompts import EncodedPrompt, speller

IDS = np.arange(3, dtype=np.uint32)


def test_the_text_of_parts_is_comma_joined_without_the_empty_ones() -> None:
    assert EncodedPrompt(IDS, [b"0", b"", b"1,2"]).ids_json == b"0,1,2"
    assert EncodedPrompt(IDS, []).ids_json == b""
    assert EncodedPrompt(IDS, b"0,1,2").ids_json == b"0,1,2"


def test_the_text_is_joined_once() -> None:
    prompt = EncodedPrompt(IDS, [b"0", b"1,2"])
    assert prompt.ids_json is prompt.ids_json


@pytest.mark.parametrize("count", [0, 1, 8_191, 8_192, 8_193, 30_000])
def test_ids_are_spelled_as_json_spells_them(count: int) -> None:
    ids = (np.arange(count) * 7_919 % 163_840).astype(np.uint32)
    assert speller(163_840).spell(ids) == ",".join(map(str, ids.tolist())).encode()


def test_the_largest_id_is_spelled() -> None:
    assert speller(163_840).spell(np.array([163_839, 0], np.uint32)) == b"163839,0"
