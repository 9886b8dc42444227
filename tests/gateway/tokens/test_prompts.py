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


@pytest.mark.parametrize(
    "lengths", [[0], [1], [8_191], [8_192], [30_000], [1, 0, 3], [0, 0, 9_000, 1, 0], [300, 5]]
)
def test_runs_of_ids_are_spelled_as_json_spells_them(lengths: list[int]) -> None:
    ids = (np.arange(sum(lengths)) * 7_919 % 163_840).astype(np.uint32)
    runs = np.split(ids, np.cumsum(lengths)[:-1])
    assert speller(163_840).spell(runs) == [",".join(map(str, run.tolist())).encode() for run in runs]


def test_the_largest_id_is_spelled() -> None:
    assert speller(163_840).spell([np.array([163_839, 0], np.uint32)]) == [b"163839,0"]
