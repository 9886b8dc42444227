from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.tokenizer import Tokenizer, TokenizerError
from parsers.base import Chat, Segment, SegmentRun
from parsers.registry import get_format

FORMAT = get_format("kimi_k3")
TOKENIZER = Tokenizer.load(FORMAT)
OPEN = Segment("<|open|>", True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


PACKAGED = Path(__file__).parents[3] / "parsers/kimi_k3/small/tiktoken.model"


class TestLoading:
    def test_a_directory_with_the_file_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "tiktoken.model").write_bytes(PACKAGED.read_bytes())
        assert (
            Tokenizer.load(FORMAT, tmp_path).encode_text("hello").tolist()
            == TOKENIZER.encode_text("hello").tolist()
        )

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match=r"cannot read .*tiktoken\.model: No such file"):
            Tokenizer.load(FORMAT, tmp_path)

    def test_a_file_that_is_no_model_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "tiktoken.model").write_bytes(b"nothing")
        with pytest.raises(TokenizerError, match=r"tiktoken\.model is not a vocabulary of kimi_k3: line 1"):
            Tokenizer.load(FORMAT, str(tmp_path))


class TestPrompts:
    def test_each_segment_is_encoded_alone(self) -> None:
        segments = [OPEN, Segment("mess", False), Segment("age", False), OPEN]
        expected = [163587, *TOKENIZER.encode_text("mess"), *TOKENIZER.encode_text("age"), 163587]
        prompt = TOKENIZER.encode_segments(segments)
        assert prompt.ids.tolist() == expected
        assert prompt.ids.dtype == np.uint32
        assert prompt.ids_json == ",".join(map(str, expected)).encode()

    @given(st.lists(TEXTS, max_size=4), st.booleans())
    def test_both_forms_agree_whether_known_before_or_not(self, texts: list[str], cached: bool) -> None:
        tokenizer = TOKENIZER if cached else Tokenizer(TOKENIZER.vocabulary, 0)
        segments = [Segment(text, False) for text in texts]
        expected = [token for text in texts for token in TOKENIZER.vocabulary.encode_text(text)]
        for _ in range(2):
            prompt = tokenizer.encode_segments(segments)
            assert prompt.ids.tolist() == expected
            assert prompt.ids_json == ",".join(map(str, expected)).encode()

    def test_no_segments_are_no_tokens(self) -> None:
        prompt = TOKENIZER.encode_segments([])
        assert (prompt.ids.tolist(), prompt.ids_json) == ([], b"")

    def test_a_long_segment_is_whole_in_both_forms(self) -> None:
        prompt = TOKENIZER.encode_segments([Segment("some words, ééé " * 20_000, False)])
        assert len(prompt.ids) > 100_000
        assert prompt.ids_json == ",".join(map(str, prompt.ids.tolist())).encode()

    def test_many_new_segments_are_whole_in_both_forms(self) -> None:
        texts = ["", *("some words, ééé " * count for count in (1, 30, 400)), "x", "some words, ééé "]
        segments = [Segment(text, False) for text in texts]
        prompt = Tokenizer(TOKENIZER.vocabulary).encode_segments([OPEN, *segments, OPEN])
        alone = [Tokenizer(TOKENIZER.vocabulary, 0).encode_segments([each]) for each in segments]
        expected = [163587, *(token for each in alone for token in each.ids.tolist()), 163587]
        assert prompt.ids.tolist() == expected
        assert prompt.ids_json == ",".join(map(str, expected)).encode()

    def test_known_segments_are_counted(self) -> None:
        tokenizer = Tokenizer(TOKENIZER.vocabulary)
        for _ in range(3):
            tokenizer.encode_segments([OPEN, Segment("text", False)])
        assert (tokenizer.cache.hits, tokenizer.cache.misses) == (4, 2)

    def test_an_unknown_control_segment_is_an_error(self) -> None:
        with pytest.raises(TokenizerError, match=r"no control token <\|nothing\|>"):
            TOKENIZER.encode_segments([Segment("<|nothing|>", True)])

    def test_plain_text_has_no_control_tokens(self) -> None:
        assert max(TOKENIZER.encode_text("<|open|>")) < 163_584

    def test_a_prompt_may_come_as_ids(self) -> None:
        prompt = TOKENIZER.prompt_of_ids([1, 163_839])
        assert (prompt.ids.tolist(), prompt.ids_json) == ([1, 163_839], b"1,163839")
        assert TOKENIZER.prompt_of_ids([]).ids_json == b""

    @pytest.mark.parametrize("ids", [[163_840], [-1], [0, 2**40]])
    def test_ids_outside_the_vocabulary_are_an_error(self, ids: list[int]) -> None:
        with pytest.raises(TokenizerError, match=r"outside 0\.\.163839"):
            TOKENIZER.prompt_of_ids(ids)

    @pytest.mark.parametrize("ids", [[1.5], ["1"], [True], [1, None], [[1]]])
    def test_ids_that_are_no_integers_are_an_error(self, ids: list[int]) -> None:
        with pytest.raises(TokenizerError, match="not an integer"):
            TOKENIZER.prompt_of_ids(ids)


class TestText:
    @given(TEXTS)
    def test_decoding_gives_the_text_back(self, text: str) -> None:
        assert TOKENIZER.decode(TOKENIZER.encode_text(text).tolist()) == text

    def test_control_tokens_are_spelled(self) -> None:
        assert TOKENIZER.decode([163587, 163839, 163_583]) == "<|open|>[PAD]"

    def test_each_stream_has_its_own_detokenizer(self) -> None:
        one, other = TOKENIZER.detokenizer(), TOKENIZER.detokenizer()
        assert one.push(0xC3) == ""
        assert other.push(ord("a")) == "a"
        assert one.push(0xA9) == "é"


class TestLongPrompts:
    TURN = "some words of a turn, ééé " * 1_000

    def test_a_conversation_gives_the_ids_that_it_would_give_alone(self) -> None:
        tokenizer = Tokenizer(TOKENIZER.vocabulary)
        messages: list[dict[str, str]] = []
        for turn in range(4):
            messages.append({"role": "user", "content": f"{turn} {self.TURN}"})
            encoded = FORMAT.encode(Chat(messages=messages))
            prompt = tokenizer.encode_segments(encoded.pieces)
            alone = Tokenizer(TOKENIZER.vocabulary, 0).encode_segments(encoded.segments)
            assert prompt.ids.tolist() == alone.ids.tolist()
            assert prompt.ids_json == alone.ids_json
            messages.append({"role": "assistant", "content": self.TURN, "reasoning_content": "x"})
        assert tokenizer.prefixes.reused_tokens > len(prompt.ids)

    def test_runs_give_the_ids_of_their_segments(self) -> None:
        tokenizer = Tokenizer(TOKENIZER.vocabulary)
        run = SegmentRun.of(OPEN, Segment("mess", False), Segment("age", False))
        for _ in range(2):
            prompt = tokenizer.encode_segments([run, Segment("text", False)])
            apart = tokenizer.encode_segments([*run.segments, Segment("text", False)])
            assert (prompt.ids.tolist(), prompt.ids_json) == (apart.ids.tolist(), apart.ids_json)

    def test_short_prompts_are_not_kept(self) -> None:
        tokenizer = Tokenizer(TOKENIZER.vocabulary)
        tokenizer.encode_segments([Segment("short", False)])
        assert len(tokenizer.prefixes) == 0
