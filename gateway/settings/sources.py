"""Raw values and their places, from the file, the environment and the flags."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.config import ConfigError
from gateway.settings.fields import ENV_PREFIX, WORKERS, settings_fields
from gateway.settings.toml_lines import Path, key_lines

CONFIG_ENV = ENV_PREFIX + "CONFIG"
OTHER_ENV = frozenset(
    ENV_PREFIX + name
    for name in ("CONFIG", "K3_TOKENIZER", "LIVE_CACHE", "PEERS", "SHARED", "SMG", "VLLM_ROUTER")
)
"""Variables that are not settings: the file's name, and what tests and load tests read."""

# Kubernetes gives each container variables for each Service of its namespace. One that is named like the
# gateway gives KVGATEWAY_PORT=tcp://..., which is not the port setting.
_SERVICE_LINK_NAME = re.compile(
    r"_SERVICE_(?:HOST|PORT(?:_\w+)?)$|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?$"
)
_SERVICE_LINK_VALUE = re.compile(r"(?:tcp|udp|sctp)://")


class Raw(msgspec.Struct, frozen=True):
    """A value as it was written, and where."""

    value: Any
    origin: str
    is_text: bool


class Document(msgspec.Struct, frozen=True):
    """A parsed TOML file."""

    name: str
    values: Mapping[str, Any]
    lines: Mapping[Path, int]

    def where(self, *path: str | int) -> str:
        """The `file:line` of a key, or of the nearest table around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path else self.name


def read_document(name: str) -> Document:
    try:
        with open(name, "rb") as file:
            text = file.read().decode()
    except OSError as error:
        raise ConfigError(f"config file {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: not UTF-8") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_error(name, text, str(error))) from None
    return Document(name, values, key_lines(text))


def _syntax_error(name: str, text: str, message: str) -> str:
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message, re.DOTALL)
    if found is None:
        return f"{name}: {message}"
    line = found[2] or str(text.count("\n") + 1)
    return f"{name}:{line}: not valid TOML: {found[1]}"


def from_document(document: Document) -> dict[str, Raw]:
    check_keys(document.values, settings_fields(), document)
    return {
        key: Raw(value, f"file {document.where(key)}", is_text=False)
        for key, value in document.values.items()
    }


def check_keys(table: Mapping[str, Any], known: Iterable[str], document: Document, *path: str | int) -> None:
    """Raises ConfigError for the first key of a table that is not known."""
    for key in table:
        if key not in known:
            raise ConfigError(f"{document.where(*path, key)}: unknown key {key!r}{_hint(key, known)}")


def from_environment(environ: Mapping[str, str]) -> dict[str, Raw]:
    """The settings of the environment; an empty variable counts as unset."""
    keys = {field.env: key for key, field in settings_fields().items() if not field.in_file_only}
    found = {}
    for name, value in environ.items():
        if not _is_setting(name, value):
            continue
        if name not in keys:
            raise ConfigError(f"env {name}: unknown variable{_hint(name, keys)}")
        key = keys[name]
        urls = [url.strip() for url in value.split(",")] if key == WORKERS else value
        found[key] = Raw(urls, f"env {name}", is_text=True)
    return found


def _is_setting(name: str, value: str) -> bool:
    if not name.startswith(ENV_PREFIX) or not value:
        return False
    if name in OTHER_ENV:
        return False
    return not (_SERVICE_LINK_NAME.search(name) or _SERVICE_LINK_VALUE.match(value))


def from_flags(flags: Mapping[str, Any]) -> dict[str, Raw]:
    """The flags that were given; other entries of the namespace are not settings."""
    return {
        key: Raw(flags[key], f"flag {field.flag}", is_text=True)
        for key, field in settings_fields().items()
        if flags.get(key) is not None and not field.in_file_only
    }


def _hint(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (is it {close[0]!r}?)" if close else ""
