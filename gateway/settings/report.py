"""The effective settings as a TOML document that says where each value came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.settings.fields import POOLS, WORKERS, pool_fields, worker_fields
from gateway.settings.load import Resolved


def render(resolved: Resolved) -> str:
    """Reading the document back as a config file gives the same settings."""
    return "\n".join([*_scalars(resolved), *_arrays(resolved), *_tables(resolved)]) + "\n"


_ARRAYS = {POOLS: pool_fields, WORKERS: worker_fields}
"""Settings that are arrays of tables; a document ends with them."""


def _scalars(resolved: Resolved) -> Iterator[str]:
    for key, origin in resolved.origins.items():
        if key in _ARRAYS:
            continue
        value = getattr(resolved.settings, key)
        line = f"# {key} is not set" if value is None else f"{key} = {_toml(value)}"
        yield f"{line}  # {origin}"


def _arrays(resolved: Resolved) -> Iterator[str]:
    """The empty ones."""
    for key in _ARRAYS:
        if not getattr(resolved.settings, key):
            yield f"{key} = []  # {resolved.origins[key]}"


def _tables(resolved: Resolved) -> Iterator[str]:
    for key, fields in _ARRAYS.items():
        origins = resolved.tables.get(key, ())
        for number, table in enumerate(getattr(resolved.settings, key)):
            yield ""
            yield f"[[{key}]]  # {origins[number] if origins else resolved.origins[key]}"
            for name, field in fields().items():
                value = getattr(table, name)
                if value != field.default:
                    yield f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    # A JSON string is a TOML basic string, once DEL is escaped as well.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
