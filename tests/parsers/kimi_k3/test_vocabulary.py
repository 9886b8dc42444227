from __future__ import annotations

import base64
import random
import threading

import numpy as np
import pytest
import tiktoken

from parsers.kimi_k3.vocabulary import (
    CONTROL_IDS,
    FIRST_CONTROL_ID,
    SIZE,
    SPLIT_PATTERN,
    KimiK3Vocabulary,
    cut,
    parse_ranks,
    small_ranks,
)

SMALL = KimiK3Vocabulary(small_ranks())
BYTES = [(bytes([byte]), byte) for byte in range(256)]


def lines(*ranks: tuple[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks)


def text_of(ids: object) -> str:
    table = SMALL.token_bytes()
    return b"".join(table[token] for token in ids).decode()  # type: ignore[attr-defined]


class TestControlTokens:
    @pytest.mark.parametrize(
        ("name", "control_id"),
        [
            ("[BOS]", 163584),
            ("[EOS]", 163585),
            ("<|end_of_msg|>", 163586),
            ("<|open|>", 163587),
            ("<|close|>", 163588),
            ("<|sep|>", 163589),
            ("[EOT]", 163593),
            ("<|media_begin|>", 163602),
            ("<|media_pad|>", 163605),
            ("<osagent_mode>", 163649),
            ("<|reserved_token_163592|>", 163592),
            ("[UNK]", 163838),
            ("[PAD]", 163839),
        ],
    )
    def test_they_have_the_models_ids(self, name: str, control_id: int) -> None:
        assert SMALL.control_id(name) == control_id
        assert SMALL.token_bytes()[control_id] == name.encode()

    def test_all_256_slots_have_a_name(self) -> None:
        assert sorted(CONTROL_IDS.values()) == list(range(FIRST_CONTROL_ID, SIZE))

    def test_an_unknown_name_is_a_key_error(self) -> None:
        with pytest.raises(KeyError):
            SMALL.control_id("<|kimi_image_placeholder|>")

    @pytest.mark.parametrize("padding", ["", " word" * 1_000])
    def test_their_spelling_in_text_is_text(self, padding: str) -> None:
        text = "".join(CONTROL_IDS) + padding
        ids = SMALL.encode_text(text)
        assert max(ids) < FIRST_CONTROL_ID
        assert text_of(ids) == text


class TestEncoding:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "a",
            "The quick brown fox.",
            "你好，世界",
            "don't  stop\r\n\n x",
            "🙂👩‍💻é",
            "\x00\x7f",
            "1234567 x_y=$z",
        ],
    )
    def test_ids_are_those_of_the_pattern_and_ranks(self, text: str) -> None:
        plain = tiktoken.Encoding(
            "plain", pat_str=SPLIT_PATTERN, mergeable_ranks=parse_ranks(small_ranks()), special_tokens={}
        )
        assert list(SMALL.encode_text(text)) == plain.encode_ordinary(text)
        assert text_of(SMALL.encode_text(text)) == text

    def test_long_text_gives_an_array_of_the_same_ids(self) -> None:
        text = "long text, é, " * 1_000
        ids = SMALL.encode_text(text)
        assert isinstance(ids, np.ndarray)
        assert ids.dtype == np.uint32
        assert ids.tolist() == SMALL._encoding.encode_ordinary(text)

    @pytest.mark.parametrize("padding", ["", "x " * 2_000])
    def test_a_lone_surrogate_is_a_replacement_character(self, padding: str) -> None:
        assert text_of(SMALL.encode_text(padding + "a\ud800b")) == padding + "a\ufffdb"

    def test_threads_may_encode_at_once(self) -> None:
        texts = [f"text number {number} " * 2_000 for number in range(8)]
        expected = [list(SMALL.encode_text(text)) for text in texts]
        got: dict[int, list[int]] = {}

        def encode(number: int) -> None:
            got[number] = list(SMALL.encode_text(texts[number]))

        threads = [threading.Thread(target=encode, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [got[number] for number in range(8)] == expected


class TestCutting:
    """The ids of long text depend on where it is cut."""

    def test_text_is_cut_at_400_000_characters(self) -> None:
        assert [len(piece) for piece in cut("ab " * 300_000)] == [400_000, 400_000, 100_000]

    def test_a_run_is_cut_at_25_000_characters(self) -> None:
        assert [len(piece) for piece in cut("a" * 60_000 + " " * 60_000 + "b")] == [
            25_000,
            25_000,
            35_000,
            25_000,
            10_001,
        ]

    def test_text_without_long_runs_is_not_cut(self) -> None:
        for text in ("a", "a" * 25_000, "a" * 25_000 + " " * 25_000 + "a" * 25_000):
            assert list(cut(text)) == [text]

    def test_the_cut_is_that_of_reading_character_by_character(self) -> None:
        chance = random.Random(3)
        for _ in range(20):
            lengths = [chance.choice([1, 12_500, 24_999, 25_000, 25_001, 50_001]) for _ in range(4)]
            text = "".join(chance.choice("a \n") * length for length in lengths)
            assert list(cut(text)) == slow_cut(text)

    def test_ids_are_those_of_the_pieces(self) -> None:
        text = "a" * 60_000
        pieces = ("a" * 25_000, "a" * 25_000, "a" * 10_000)
        assert list(SMALL.encode_text(text)) == [
            token for piece in pieces for token in SMALL.encode_text(piece)
        ]


def slow_cut(text: str) -> list[str]:
    pieces, start, run = [], 0, 0
    for at, char in enumerate(text):
        same = at > 0 and char.isspace() == text[at - 1].isspace()
        run = run + 1 if same else 1
        if run > 25_000:
            pieces.append(text[start:at])
            start, run = at, 1
    return [*pieces, text[start:]]


class TestRanksFile:
    def test_the_small_one_is_small_and_whole(self) -> None:
        assert len(small_ranks()) < 120_000
        assert len(parse_ranks(small_ranks())) > 4_000

    @pytest.mark.parametrize(
        "text", ["think", "response", "tools", "call", "argument", "json", "message", " role", '="', "system"]
    )
    def test_in_the_small_one_the_markups_words_are_one_token(self, text: str) -> None:
        assert len(SMALL.encode_text(text)) == 1

    def test_unused_ids_have_no_bytes(self) -> None:
        table = SMALL.token_bytes()
        assert len(table) == SIZE
        assert table[163_583] == b""

    @pytest.mark.parametrize(
        ("data", "complaint"),
        [
            (b"", "256 of the 256 single bytes"),
            (b"not a model", "line 1"),
            (b"\xff\xfe 1", "line 1"),
            (lines(*BYTES) + b"YWI= x", "line 257"),
            (lines(*BYTES[1:]), "1 of the 256 single bytes"),
            (lines(*BYTES, (b"ab", 7)), "same rank"),
            (lines(*BYTES, (b"ab", FIRST_CONTROL_ID)), "outside"),
            (lines(*BYTES, (b"ab", -1)), "outside"),
        ],
    )
    def test_a_file_that_is_none_is_refused(self, data: bytes, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            KimiK3Vocabulary(data)
