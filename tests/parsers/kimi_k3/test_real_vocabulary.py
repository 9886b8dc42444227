"""Published truths about the full model's vocabulary; skipped where its file is absent."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.tokens.tokenizer import Tokenizer
from parsers.base import Chat
from tests.parsers.kimi_k3.material import FORMAT, real_tokenizer

# A published request whose count of prompt tokens is known: the count holds for these very words.
QUESTION = {"role": "user", "content": "请用 JSON 格式回答：北京是中国的首都吗？答案需要包含键 capital。"}
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "boolean"}},
    "required": ["capital"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(FORMAT, real_tokenizer())


def billed(tokenizer: Tokenizer, **chat: Any) -> int:
    """Prompt tokens as the model's own service counts them."""
    encoded = FORMAT.encode(Chat(**chat))
    return len(tokenizer.encode_segments(encoded.segments).ids) - encoded.uncounted_tokens


def test_single_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_text("think").tolist() == [39964]


def test_the_image_placeholder_is_ordinary_text(tokenizer: Tokenizer) -> None:
    ids = [27, 91, 74, 30223, 11947, 114136, 91, 29]
    assert tokenizer.encode_text("<|kimi_image_placeholder|>").tolist() == ids
    assert tokenizer.decode(ids) == "<|kimi_image_placeholder|>"


def test_a_past_answer_alone(tokenizer: Tokenizer) -> None:
    messages = [{"role": "assistant", "content": "你好"}]
    assert billed(tokenizer, messages=messages, reasoning_effort="high") == 99


def test_a_question_without_thinking(tokenizer: Tokenizer) -> None:
    assert billed(tokenizer, messages=[QUESTION], thinking={"type": "disabled"}) == 36


def test_a_question_with_a_schema_for_its_answer(tokenizer: Tokenizer) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "capital_answer", "schema": SCHEMA}}
    assert (
        billed(tokenizer, messages=[QUESTION], thinking={"type": "disabled"}, response_format=wanted) == 119
    )
