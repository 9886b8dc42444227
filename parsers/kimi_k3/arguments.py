"""Tool calls on their way out: typed argument elements become one JSON object, as they are generated.

A string argument is escaped piece by piece, which gives the same text however it is cut. Values of other
types are held until they are complete, because only then it is known whether they are JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from json.encoder import encode_basestring as quoted
from random import getrandbits
from typing import Any, Literal, NamedTuple

import msgspec

from parsers.base import FinishedCall, OutputEvent, ToolArgumentsDelta, ToolCallStart

_JSON_TYPES = frozenset({"number", "boolean", "null", "object", "array"})


class _Value(Enum):
    """What the text inside a call is just now."""

    NONE = auto()
    STRING = auto()
    HELD = auto()
    RAW = auto()


class _Argument(NamedTuple):
    """An element of a call, as the model said it."""

    key: str
    text: str
    is_json: bool


class ToolCallWriter:
    """Writes the events of an answer's calls to `events`, which its owner sets.

    A call is started (`ToolCallStart`) with its first element or at its end, so that a call which the
    model begins anew leaves no trace. Without `enabled` nothing is written; without `parallel` nothing
    after the first complete call.
    """

    def __init__(
        self,
        *,
        enabled: bool,
        parallel: bool,
        ids: Literal["random", "name_index"],
    ) -> None:
        self.complete = 0
        self.incomplete: list[int] = []
        """Indices of calls that were started and end inside a value."""
        self.index = -1
        """Of the call that is being written."""
        self.in_string = False
        """Inside a string, of which something has gone out: nothing is owed before the next piece."""
        self.pieces: list[str] = []
        """Text of the value that is being written, as the model says it; the list stays the same one."""
        self._finished: list[tuple[str, bool, list[_Argument]]] = []
        self._arguments: list[_Argument] = []
        self._key = ""
        self.events: list[OutputEvent] = []
        self._enabled = enabled
        self._parallel = parallel
        self._ids = ids
        self._started = False
        self._name = ""
        self._members = 0
        self._raw = False
        self._value = _Value.NONE
        self._owed = ""
        """Punctuation that goes out with the next piece, so that it is no piece of its own."""

    def begin(self, name: str | None) -> None:
        """A call's opener; one without a name is not written."""
        wanted = self._enabled and (self._parallel or not self.complete)
        self._name = name or "" if wanted else ""
        self._started = False
        self._members = 0
        self._raw = False
        self._value = _Value.NONE
        self._arguments = []
        self._owed = ""
        self.in_string = False

    def begin_argument(self, attributes: Mapping[str, str]) -> None:
        key = attributes.get("key")
        if not self._name or key is None or self._raw:
            return
        self._start()
        self._owed += f"{', ' if self._members else '{'}{quoted(key)}: "
        self._members += 1
        self._key = key
        self.pieces.clear()
        if attributes.get("type") in _JSON_TYPES:
            self._value = _Value.HELD
        else:
            self._value = _Value.STRING
            self._owed += '"'

    def begin_json(self) -> None:
        """The opener of a whole JSON object; the element's text is passed on as it is."""
        if self._name and not self._members and not self._raw:
            self._raw = True
            self._value = _Value.RAW
            self.pieces.clear()
            self._start()

    def text(self, text: str) -> None:
        """Text inside an element."""
        self.pieces.append(text)
        if self._value is _Value.STRING:
            self._write(quoted(text)[1:-1])
            self.in_string = True
        elif self._value is _Value.RAW:
            self._members += 1
            self._write(text)

    def end_value(self) -> None:
        """The end of an `argument` or `json` element."""
        self.in_string = False
        text = "".join(self.pieces)
        if self._value is _Value.STRING:
            self._owed += '"'
        elif self._value is _Value.HELD:
            self._owed += _json_of(text)
        if self._value is not _Value.NONE:
            self._arguments.append(_Argument(self._key, text, self._value is not _Value.STRING))
        self._value = _Value.NONE

    def end(self) -> None:
        """The end of a call; it is complete."""
        if not self._name:
            return
        self._start()
        if not self._members:
            self._write("{}")
        elif not self._raw:
            self._write("}")
        self.complete += 1
        self._finished.append((self._name, bool(self._raw and self._arguments), self._arguments))
        self._name = ""

    def finished(self) -> list[FinishedCall]:
        """The complete calls."""
        return [
            FinishedCall(name, _value_of(arguments[0].text, None) if raw else _object_of(arguments))
            for name, raw, arguments in self._finished
        ]

    def recover(self) -> None:
        """The call's end is missing: it is complete if it has an element, else it never was."""
        if self._members or self._raw:
            self.end()
        self._name = ""

    def abandon(self) -> None:
        """The call ends inside a value: its arguments stay without their end."""
        if self._name and self._started:
            self.incomplete.append(self.index)
        self._name = ""
        self._value = _Value.NONE
        self.in_string = False

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self.index += 1
            self.events.append(ToolCallStart(self.index, self._new_id(self.index), self._name))

    def _write(self, text: str) -> None:
        if self._owed:
            text = self._owed + text
            self._owed = ""
        self.events.append(ToolArgumentsDelta(self.index, text))

    def _new_id(self, index: int) -> str:
        if self._ids == "name_index":
            return f"{self._name}:{index}"
        return f"{self._name}_{getrandbits(63)}"  # the vendor's form, and unique


def _object_of(arguments: Sequence[_Argument]) -> dict[str, Any]:
    """What a reader of the arguments' JSON gets: the last of a repeated key wins."""
    return {key: _value_of(text, text) if is_json else text for key, text, is_json in arguments}


def _value_of(text: str, otherwise: str | None) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return otherwise


def _json_of(text: str) -> str:
    """The text itself when it is JSON, number spelling and all; else a string of it (`NaN` is no JSON)."""
    try:
        value: msgspec.Raw = msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return quoted(text)
    return bytes(value).decode()
