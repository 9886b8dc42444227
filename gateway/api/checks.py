"""Checks of one field's JSON value. Each takes the raw text and raises ValueError with a plain reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

Check = Callable[[bytes], Any]

INT64 = 2**63
UNBOUNDED = 2**31
MAX_SHOWN_CHARS = 40
MAX_STRING_CHARS = 4096
"""Of a stop string or a bad word: looking for one costs its length squared."""
"""Of a client's value in an error message."""


Schema = dict[str, Any]
_schemas: dict[Check, Schema] = {}


def described(check: Check, schema: Schema) -> Check:
    """The check, with the JSON schema of what it takes."""
    _schemas[check] = schema
    return check


def schema_of(check: Check) -> Schema:
    """What a check takes, for the API description; all that is JSON when nothing says it."""
    return _schemas.get(check, {})


class MemberError(ValueError):
    """A value in which one member is wrong; `path` leads from the field to it: `[0].function.name`."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.path = path


_NOT_EMPTY: Schema = {"type": "string", "minLength": 1}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def number(low: float, high: float = math.inf, *, exclusive_low: bool = False) -> Check:
    """A finite number in a range."""
    decode = msgspec.json.Decoder(float).decode
    bounds = f"{'(' if exclusive_low else '['}{low:g}, {high:g}]"

    def check(raw: bytes) -> float:
        value = _decode(decode, raw, "a number")
        assert isinstance(value, float)
        if not (low <= value <= high) or (exclusive_low and value == low):
            raise ValueError(f"must be in {bounds}, got {raw.decode()[:MAX_SHOWN_CHARS]}")
        return value

    schema: Schema = {"type": "number", "exclusiveMinimum" if exclusive_low else "minimum": low}
    return described(check, schema if high == math.inf else schema | {"maximum": high})


def integer(low: int, high: int = INT64 - 1) -> Check:
    """An integer in a range."""
    decode = msgspec.json.Decoder(int).decode

    def check(raw: bytes) -> int:
        value = _decode(decode, raw, "an integer")
        assert isinstance(value, int)
        if not low <= value <= high:
            raise ValueError(f"must be an integer in [{low}, {high}], got {raw.decode()[:MAX_SHOWN_CHARS]}")
        return value

    return described(check, {"type": "integer", "minimum": low, "maximum": high})


def typed(kind: Any, what: str) -> Check:
    """Anything that msgspec decodes as `kind`."""
    decode = msgspec.json.Decoder(kind).decode

    def check(raw: bytes) -> Any:
        return _decode(decode, raw, what)

    return described(check, msgspec.json.schema(kind))


def without(check: Check, names: Sequence[str]) -> Check:
    """An object that `check` allows and that has none of these members."""

    def check_members(raw: bytes) -> Any:
        value = check(raw)
        if found := [name for name in names if name in value]:
            raise ValueError(f"must not have {found[0]!r}")
        return value

    return described(check_members, schema_of(check) | {"properties": dict.fromkeys(names, False)})


def text(min_chars: int = 0, max_chars: int = UNBOUNDED, *, without: str = "") -> Check:
    """A string of bounded length, without some characters."""
    decode = msgspec.json.Decoder(str).decode

    def check(raw: bytes) -> str:
        value = _decode(decode, raw, "a string")
        assert isinstance(value, str)
        if not min_chars <= len(value) <= max_chars:
            raise ValueError(f"must have {min_chars} to {max_chars} characters, has {len(value)}")
        if any(each in value for each in without):
            raise ValueError(f"must not contain any of {', '.join(map(repr, without))}")
        return value

    schema: Schema = {"type": "string", "minLength": min_chars}
    if max_chars < UNBOUNDED:
        schema["maxLength"] = max_chars
    if without:
        schema["pattern"] = "^[^" + "".join(f"\\u{ord(each):04x}" for each in without) + "]*$"
    return described(check, schema)


def texts(most: int) -> Check:
    """A list of strings, none empty."""
    decode = msgspec.json.Decoder(list[str]).decode

    def check(raw: bytes) -> list[str]:
        return _bounded(list(_decode(decode, raw, "a list of strings")), most)

    return described(check, {"type": "array", "items": _NOT_EMPTY, "maxItems": most})


def one_of(*choices: str) -> Check:
    decode = msgspec.json.Decoder(str).decode

    def check(raw: bytes) -> str:
        value = _decode(decode, raw, "a string")
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return str(value)

    return described(check, {"enum": list(choices)})


def stop_strings(raw: bytes) -> list[str]:
    """OpenAI's `stop`: a string or up to four of them, none empty or longer than MAX_STRING_CHARS."""
    value = _decode(msgspec.json.Decoder(str | list[str]).decode, raw, "a string or a list of strings")
    return _bounded([value] if isinstance(value, str) else list(value), 4)


def _bounded(strings: list[str], most: int) -> list[str]:
    if len(strings) > most:
        raise ValueError(f"must have at most {most} entries, has {len(strings)}")
    if "" in strings:
        raise ValueError("must not contain an empty string")
    if any(len(string) > MAX_STRING_CHARS for string in strings):
        raise ValueError(f"must not contain a string of more than {MAX_STRING_CHARS} characters")
    return strings


_prompt = msgspec.json.Decoder(str | list[int | str | list[int]]).decode


def prompt(raw: bytes) -> str | list[Any]:
    """A completion's prompt: text, token ids, or a list of either, not mixed."""
    value: str | list[Any] = _decode(_prompt, raw, "a string, a list of token ids, or a list of them")
    if isinstance(value, list) and len({type(item) for item in value}) > 1:
        raise ValueError("must not mix text and token ids")
    return value


def token_ids(*, empty: bool = True) -> Check:
    """A list of token ids. Whether the vocabulary has them is known only with the model."""
    decode = msgspec.json.Decoder(list[int]).decode

    def check(raw: bytes) -> list[int]:
        value: list[int] = _decode(decode, raw, "a list of token ids")
        if not value and not empty:
            raise ValueError("must not be empty")
        if value and min(value) < 0:
            raise ValueError(f"must be token ids, got {min(value)}")
        return value

    return described(check, _IDS if empty else _IDS | {"minItems": 1})


def logit_bias(raw: bytes) -> dict[str, float]:
    value = _decode(msgspec.json.Decoder(dict[str, float]).decode, raw, "an object of numbers by token id")
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise ValueError(f"keys must be token ids, got {key[:MAX_SHOWN_CHARS]!r}")
        if not -100 <= bias <= 100:
            raise ValueError(f"values must be in [-100, 100], got {bias:g}")
    return dict(value)


described(stop_strings, {"anyOf": [_NOT_EMPTY, {"type": "array", "items": _NOT_EMPTY, "maxItems": 4}]})
described(
    prompt,
    {
        "anyOf": [
            _NOT_EMPTY,
            _IDS | {"minItems": 1},
            {"type": "array", "items": _NOT_EMPTY, "minItems": 1},
            {"type": "array", "items": _IDS | {"minItems": 1}, "minItems": 1},
        ]
    },
)
described(
    logit_bias,
    {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,19}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
)


def _decode(decode: Callable[[bytes], Any], raw: bytes, what: str) -> Any:
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        at = f" ({error})" if "- at `$" in str(error) else ""
        raise ValueError(f"must be {what}{at}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
