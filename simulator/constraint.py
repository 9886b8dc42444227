"""What a constraint asks of an answer, as far as a scripted one keeps to it: JSON, a text, which tools.

No decoding is guided here. A structural tag over a whole Kimi-K3 answer is read for the tools that may be
called and for the JSON or the texts that its response may be; grammars and patterns are not followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from parsers.kimi_k3.markers import unescape_attribute

_CALL = re.compile(r'call tool="([^"]*)" index="')
_TOOLS = "tools"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    schema: Any = None
    """Of the JSON that the answer is to be."""
    text: str | None = None
    """What it is to say."""
    tools: Sequence[str] | None = None
    """Names that may be called, where that is said."""
    must_call: bool = False


ANYTHING = Wanted()


def read_constraint(outputs: Mapping[str, Any] | None) -> Wanted:
    """Of vLLM's `structured_outputs`."""
    outputs = outputs or {}
    if outputs.get("json_object"):
        return Wanted(schema={"type": "object"})
    if choices := outputs.get("choice"):
        return Wanted(text=choices[0])
    if (tag := outputs.get("structural_tag")) is not None:
        return _read_tag(_value(tag))
    return Wanted(schema=_value(outputs.get("json")))


def _value(text: Any) -> Any:
    """JSON that may come as text; None for what is none."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None


def _read_tag(tag: Any) -> Wanted:
    whole = tag.get("format") if isinstance(tag, Mapping) else None
    tools: list[str] = []
    schema = text = None
    for part in _parts(whole):
        called = _CALL.match(_const(part) or "")
        if called is not None:
            tools.append(unescape_attribute(called[1]))
        elif not tools:
            schema = part.get("json_schema", schema)
            text = _choice(part) or text
    top = whole.get("elements") if isinstance(whole, Mapping) else None
    must_call = any(_const(part) == _TOOLS for part in top or ())
    return Wanted(schema=schema, text=text, tools=tools or None, must_call=must_call)


def _parts(part: Any) -> Iterator[Mapping[str, Any]]:
    """A format and all those in it, in the order in which they are written."""
    if not isinstance(part, Mapping):
        return
    yield part
    for inner in (part.get("content"), *(part.get("elements") or ())):
        yield from _parts(inner)


def _const(part: Any) -> str | None:
    fits = isinstance(part, Mapping) and part.get("type") == "const_string"
    return part["value"] if fits else None


def _choice(part: Mapping[str, Any]) -> str | None:
    """The first of several texts to choose from."""
    texts = [_const(each) for each in part.get("elements") or ()]
    return texts[0] if part.get("type") == "or" and None not in texts else None
