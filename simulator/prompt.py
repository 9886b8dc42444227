"""Reads a K3 prompt back from its ids, as far as a scripted answer needs it.

A prompt is messages, each `<|open|>message role="..."...<|sep|>` body
`<|close|>message<|sep|><|end_of_msg|>`; the last one is open: it ends in the channel that the model has to
go on with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from simulator.tokens import Tokens

HEADER_TOKENS = 256
QUOTE_TOKENS = 64
STUB_TOKENS = 16
QUOTE_CHARS = 80

Channel = Literal["think", "response", "text"]
Tool = dict[str, Any]

_ROLE = re.compile(r'\brole="([a-z]+)"')
_FENCED_LIST = re.compile(r"```json\n(\[.*?\])\n```", re.DOTALL)
_FENCED_OBJECT = re.compile(r"```json\n(\{.*\})\n```", re.DOTALL)
_NO_CALLS = "`tool_choice=none`"
_JSON_ANSWER = "`response_format=json_"


class PromptView(msgspec.Struct, frozen=True, kw_only=True):
    """What the script looks at."""

    channel: Channel
    """Where the answer begins; "text" for a prompt without K3's markup."""
    messages: int
    tokens: int
    quote: str
    """The beginning of the last user message, or of a plain prompt."""
    tools: Sequence[Tool]
    """Declared functions; empty when calls are forbidden."""
    answered: bool = False
    """Whether the newest message is a call's result."""
    schema: Any = None
    """Of the JSON that the prompt asks for."""


class _Marks(NamedTuple):
    end: int
    close: int
    sep: int


class _Message(msgspec.Struct, frozen=True):
    role: str
    body: Sequence[int]


def read_prompt(ids: Sequence[int], tokens: Tokens) -> PromptView:
    """Look at a prompt; anything that is not K3's is a plain text prompt."""
    marks = _marks(tokens)
    if marks is None or ids[-1] != marks.sep or marks.end not in ids:
        quote = _clip(tokens.text(ids[:QUOTE_TOKENS]))
        return PromptView(channel="text", messages=0, tokens=len(ids), quote=quote, tools=[])
    messages = _messages(ids, marks, tokens)
    users = [message for message in messages if message.role == "user"]
    return PromptView(
        channel="response" if tokens.text(ids[-STUB_TOKENS:]).endswith("response<|sep|>") else "think",
        messages=len(messages),
        tokens=len(ids),
        quote=_clip(tokens.text(users[-1].body[:QUOTE_TOKENS])) if users else "",
        tools=_tools(messages, tokens),
        answered=_answered(messages),
        schema=_schema(tokens.text(messages[-1].body)) if messages else None,
    )


def answer_start(ids: Sequence[int], tokens: Tokens, opening: Sequence[int]) -> int:
    """Where the answer begins in a prompt that holds the beginning of one; the length of any other prompt.

    `opening` is how an answer to a plain text begins.

    An open message is its header and the opened channel, each ended by a separator; what follows was said.
    """
    marks = _marks(tokens)
    if marks is None or marks.end not in ids:
        return _after_text(list(ids), list(opening))
    array = np.asarray(ids, dtype=np.uint32)
    last = int(np.flatnonzero(array == marks.end)[-1])
    separators = np.flatnonzero(array[last:] == marks.sep)
    return last + int(separators[1]) + 1 if len(separators) > 1 else len(ids)


def _after_text(ids: list[int], opening: list[int]) -> int:
    size = len(opening)
    whole = (start for start in range(len(ids) - size, -1, -1) if ids[start : start + size] == opening)
    cut = (start for start in range(len(ids) - size + 1, len(ids) - 1) if start >= 0)
    begun = (start for start in cut if ids[start:] == opening[: len(ids) - start])
    return next(whole, next(begun, len(ids)))


def _marks(tokens: Tokens) -> _Marks | None:
    found = [tokens.control(name) for name in ("<|end_of_msg|>", "<|close|>", "<|sep|>")]
    known = [token_id for token_id in found if token_id is not None]
    return _Marks(*known) if len(known) == len(found) else None


def _messages(ids: Sequence[int], marks: _Marks, tokens: Tokens) -> list[_Message]:
    """The closed messages, each body without its tags."""
    ends = np.flatnonzero(np.asarray(ids, dtype=np.uint32) == marks.end).tolist()
    starts = [0, *(position + 1 for position in ends[:-1])]
    messages = []
    for start, stop in zip(starts, ends, strict=True):
        head = list(ids[start : min(start + HEADER_TOKENS, stop)])
        if marks.sep in head:
            cut = head.index(marks.sep) + 1
            role = _ROLE.search(tokens.text(head[:cut]))
            body = _until_last(list(ids[start + cut : stop]), marks.close)
            messages.append(_Message(role[1] if role else "", body))
    return messages


def _until_last(ids: list[int], mark: int) -> list[int]:
    return ids[: len(ids) - 1 - ids[::-1].index(mark)] if mark in ids else ids


def _answered(messages: list[_Message]) -> bool:
    spoken = [message for message in messages if message.role != "system"]
    return bool(spoken) and spoken[-1].role == "tool"


def _tools(messages: list[_Message], tokens: Tokens) -> list[Tool]:
    tools: list[Tool] = []
    for message in messages:
        if message.role == "system":
            text = tokens.text(message.body)
            if _NO_CALLS in text:
                return []
            tools += _declared(text)
    return tools


def _schema(note: str) -> Any:
    if _JSON_ANSWER not in note:
        return None
    found = _FENCED_OBJECT.search(note)
    try:
        return msgspec.json.decode(found[1]) if found else {"type": "object"}
    except msgspec.DecodeError:
        return {"type": "object"}


def _declared(text: str) -> list[Tool]:
    found: list[Tool] = []
    for block in _FENCED_LIST.findall(text):
        try:
            entries = msgspec.json.decode(block, type=list[dict[str, Any]])
        except msgspec.DecodeError:
            continue
        found += [entry["function"] for entry in entries if isinstance(entry.get("function"), dict)]
    return [tool for tool in found if isinstance(tool.get("name"), str)]


def _clip(text: str) -> str:
    """One line, not too long, without half a character at the cut."""
    return " ".join(text.split())[:QUOTE_CHARS].rstrip("\ufffd ")
