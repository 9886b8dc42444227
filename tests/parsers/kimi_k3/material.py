"""What the Kimi-K3 tests share: the small tokenizer, markup to ids, and an answer read in many ways."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens.tokenizer import Tokenizer
from parsers.answer import Answer, AnswerBuilder
from parsers.base import OutputEvent, OutputOptions, OutputParser, Segment
from parsers.registry import get_format

ROOT = Path(__file__).resolve().parents[3]
FORMAT = get_format("kimi_k3")
TOKENIZER = Tokenizer.load(FORMAT)
MARKERS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
GROUPS = (1, 2, 4, 7, 20)


def real_tokenizer() -> Path:
    """Directory of the full model's vocabulary; skips the test when there is none."""
    directory = Path(os.environ.get("KVGATEWAY_K3_TOKENIZER") or ROOT / "../shared/data/kimi_k3_tokenizer")
    if not (directory / "tiktoken.model").exists():
        pytest.skip(f"no tiktoken.model of the full model in {directory} (KVGATEWAY_K3_TOKENIZER)")
    return directory


def shared_cases(*kinds: str, where: Mapping[str, object] = {}) -> list[Any]:
    """Cases of these kinds and fields as pytest parameters; one skipped parameter when there are none."""
    path = ROOT / "../shared/cases/kimi_k3.jsonl"
    if not path.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no cases in {path}"))]
    cases = [json.loads(line) for line in path.open()]
    return [
        pytest.param(case, id=case["id"])
        for case in cases
        if case["kind"] in kinds and where.items() <= case.items()
    ]


def segments_of(markup: str) -> list[Segment]:
    """Markup as a model generates it: markers as control tokens, the rest ordinary."""
    pieces = re.split("(" + "|".join(map(re.escape, MARKERS)) + ")", markup)
    return [Segment(piece, piece in MARKERS) for piece in pieces if piece]


def ids_of(markup: str | Sequence[Segment]) -> list[int]:
    segments = segments_of(markup) if isinstance(markup, str) else markup
    return TOKENIZER.encode_segments(segments).ids.tolist()


def grouped(items: Sequence[Any], size: int) -> Iterator[Any]:
    return (items[start : start + size] for start in range(0, len(items), size))


def parser(*, thinking: bool = True, **options: Any) -> OutputParser:
    return FORMAT.parser(
        OutputOptions(thinking=thinking, **{"tools": TOOLS, **options}), TOKENIZER.detokenizer()
    )


def events_of(pieces: Iterable[Any], *, finish: str = "stop", **options: Any) -> list[OutputEvent]:
    """Events of an answer that arrives in these pieces, texts or lists of ids."""
    reader = parser(**options)
    events = []
    for piece in pieces:
        events += reader.feed_text(piece) if isinstance(piece, str) else reader.feed(piece)
    return events + reader.finish(finish)


def answer_of(pieces: Iterable[Any], *, finish: str = "stop", **options: Any) -> Answer:
    """The whole answer of the same."""
    reader, builder = parser(**options), AnswerBuilder()
    for piece in pieces:
        builder.add(reader.feed_text(piece) if isinstance(piece, str) else reader.feed(piece))
    builder.add(reader.finish(finish))
    return builder.build(reader)


def plain(answer: Answer) -> tuple[str, str, list[tuple[str, str]], str]:
    """An answer without its random ids."""
    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    return answer.reasoning, answer.content, calls, answer.finish_reason


def read(markup: str, *, text: bool = True, **options: Any) -> Answer:
    """The answer of markup, having asserted that it is the same however it arrives.

    `text` false leaves out the ways that go over text, for what only ids can tell.
    """
    ids = ids_of(markup)
    ways: list[Iterable[Any]] = [[ids], *(grouped(ids, size) for size in GROUPS)]
    if text:
        ways += [[markup], *(grouped(markup, size) for size in GROUPS)]
    answers = [answer_of(way, **options) for way in ways]
    assert all(plain(answer) == plain(answers[0]) for answer in answers), [plain(each) for each in answers]
    return answers[0]


def tag(name: str, /, **attributes: str) -> str:
    written = (f' {key}="{value}"' for key, value in attributes.items())
    return f"<|open|>{name}{''.join(written)}<|sep|>"


def end(name: str) -> str:
    return f"<|close|>{name}<|sep|>"


def argument(key: str, value: str, kind: str | None = "string") -> str:
    return tag("argument", key=key, **({"type": kind} if kind else {})) + value + end("argument")


def call(name: str, *elements: str, index: int = 1) -> str:
    return tag("call", tool=name, index=str(index)) + "".join(elements) + end("call")


def tools(*calls: str) -> str:
    return tag("tools") + "".join(calls) + end("tools")


END = end("message") + "<|end_of_msg|>"
"""How every complete answer ends."""


def turn(reasoning: str, response: str, *rest: str) -> str:
    """A complete answer as the grammar wants it, after the prompt's opened think."""
    return reasoning + end("think") + tag("response") + response + end("response") + "".join(rest) + END
