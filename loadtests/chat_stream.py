"""The events of a stream of chat chunks, as a client reads them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

DATA = b"data: "
DONE = b"[DONE]"


class StreamError(Exception):
    """A stream did not end as it should."""


def payloads(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The events of a stream. Raises StreamError when it carries an error or does not end properly."""
    for line in lines:
        if not line.startswith(DATA):
            continue
        data = line[len(DATA) :]
        if data == DONE:
            return
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise StreamError(str(event["error"]))
        yield event
    raise StreamError("the stream ended without [DONE]")


def text_of(event: dict[str, Any]) -> str:
    """What an event says: reasoning, answer or arguments of a call."""
    said = ""
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        said += (delta.get("reasoning_content") or "") + (delta.get("content") or "")
        said += "".join(call["function"].get("arguments", "") for call in delta.get("tool_calls", ()))
    return said
