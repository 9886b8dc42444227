"""The fields of the settings structs as flags, variables and keys, read from their annotations."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from gateway.config import ConfigError, PoolSettings, Settings, WorkerSettings

ENV_PREFIX = "KVGATEWAY_"
WORKERS = "workers"
POOLS = "pools"


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One setting by all its names."""

    key: str
    type: Any
    default: Any
    help: str

    @property
    def in_file_only(self) -> bool:
        """There is no flag and no variable for it."""
        return self.key == POOLS

    @property
    def is_switch(self) -> bool:
        """Its flag alone means true."""
        return get_args(self.type)[0] is bool

    @property
    def flag(self) -> str:
        return "--worker" if self.key == WORKERS else "--" + self.key.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.key.upper()

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal; nothing for other types."""
        plain = get_args(self.type)[0]
        return get_args(plain) if get_origin(plain) is Literal else ()


@cache
def settings_fields() -> dict[str, Field]:
    return _fields(Settings)


@cache
def worker_fields() -> dict[str, Field]:
    return _fields(WorkerSettings)


@cache
def pool_fields() -> dict[str, Field]:
    return _fields(PoolSettings)


def _fields(struct: type[msgspec.Struct]) -> dict[str, Field]:
    hints = get_type_hints(struct, include_extras=True)
    return {
        field.name: Field(
            key=field.name, type=hints[field.name], default=field.default, help=_help(hints[field.name])
        )
        for field in msgspec.structs.fields(struct)
    }


def _help(annotation: Any) -> str:
    """The last description of an annotation; outer ones come last."""
    metas = [meta for meta in get_args(annotation)[1:] if isinstance(meta, msgspec.Meta)]
    return [meta.description or "" for meta in metas][-1]


def convert(field: Field, raw: object, where: str, *, is_text: bool) -> Any:
    """A raw value as the field's type. Text, from a flag or the environment, may spell a number.

    `where` starts the message of the ConfigError that a bad value raises.
    """
    if field.choices and raw not in field.choices:
        raise bad_value(where, field.key, "expected one of " + ", ".join(field.choices), raw)
    try:
        return msgspec.convert(raw, field.type, strict=not is_text)
    except msgspec.ValidationError as error:
        raise bad_value(where, field.key, _problem(error), raw) from None


def bad_value(where: str, key: str, problem: str, value: object) -> ConfigError:
    return ConfigError(f"{where}: {key}: {problem}, got {value!r}")


def _problem(error: msgspec.ValidationError) -> str:
    text = str(error).split(" - at `", 1)[0].split(", got ", 1)[0].replace("`", "")
    return text[:1].lower() + text[1:]
