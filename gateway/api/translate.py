"""What the endpoints that are not OpenAI's chat share: their bodies are read, then said as a chat's body.

The chat's own checks then see every value, and numbers stay as the client spelled them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from gateway.api.fields import CHAT_FIELDS, Goes, read_fields
from gateway.serving.errors import RequestError, bad_request
from gateway.serving.request import Fields

Shape = TypeVar("Shape")
_PLACE = re.compile(r" - at `\$\.?(.*)`$")


def read_as(body: bytes | msgspec.Raw, shape: type[Shape], path: str = "") -> Shape:
    """A body, or a field of it at `path`, in its shape. Raises RequestError that names the place."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        reason, param = str(error), path
        if found := _PLACE.search(reason):
            reason = reason[: found.start()]
            param = f"{path}.{found[1]}" if path and not found[1].startswith("[") else path + found[1]
        if not param:
            raise bad_request("The request body must be a JSON object.", code="invalid_json") from None
        raise bad_request(f"`{param}`: {reason[:1].lower()}{reason[1:]}.", param, "invalid_value") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.", code="invalid_json") from None


def passed_on(
    rest: Mapping[str, msgspec.Raw], own: Collection[str], kept: Collection[str] = ()
) -> dict[str, Any]:
    """What goes on as it is: fields for workers, and those that the chat knows by the same name (`kept`)."""
    return {
        name: value
        for name, value in rest.items()
        if name not in own
        and (name in kept or (field := CHAT_FIELDS.get(name)) is None or field.goes is not Goes.GATEWAY)
    }


ABSENT: Any = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
"""Default of a field that is kept as it is spelled."""


def given(raw: msgspec.Raw) -> msgspec.Raw | None:
    """None for a field that is absent or null."""
    return None if bytes(raw) == b"null" else raw


def missing(param: str) -> RequestError:
    return bad_request(f"`{param}` is required.", param, "missing_required_parameter")


def unsupported(param: str, reason: str) -> RequestError:
    return bad_request(f"`{param}`: {reason}.", param, "unsupported_parameter")


def read_chat(chat: Mapping[str, Any], names: Mapping[str, str], *, strict: bool) -> Fields:
    """The chat's fields; `names` gives the client's name of a field for the chat's."""
    body = msgspec.json.encode({name: value for name, value in chat.items() if value is not None})
    try:
        return read_fields(body, CHAT_FIELDS, strict=strict)
    except RequestError as error:
        raise renamed(error, names) from None


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The error with the client's name of the field."""
    chats, dot, rest = re.match(r"(\w*)(.?)(.*)", error.param or "", re.DOTALL).groups()  # type: ignore[union-attr]
    own = names.get(chats)
    if own is None:
        return error
    # Places within a chat's messages are not those of the client's input.
    param = own if own == "input" else own + dot + rest
    message = error.message.replace(f"`{error.param}`", f"`{param}`")
    return RequestError(error.status, message, param=param, code=error.code, headers=error.headers)
