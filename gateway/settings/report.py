"""The effective settings as a TOML document that says where each value came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config import WorkerSettings
from gateway.settings.fields import WORKERS, worker_fields
from gateway.settings.load import Resolved


def render(resolved: Resolved) -> str:
    """Reading the document back as a config file gives the same settings."""
    return "\n".join([*_scalars(resolved), *_workers(resolved)]) + "\n"


def _scalars(resolved: Resolved) -> Iterator[str]:
    for key, origin in resolved.origins.items():
        if key == WORKERS:
            continue
        value = getattr(resolved.settings, key)
        line = f"# {key} is not set" if value is None else f"{key} = {_toml(value)}"
        yield f"{line}  # {origin}"


def _workers(resolved: Resolved) -> Iterator[str]:
    origin = resolved.origins[WORKERS]
    if not resolved.settings.workers:
        yield f"workers = []  # {origin}"
    for worker in resolved.settings.workers:
        yield ""
        yield f"[[workers]]  # {origin}"
        yield from _worker(worker)


def _worker(worker: WorkerSettings) -> Iterator[str]:
    for key, field in worker_fields().items():
        value = getattr(worker, key)
        if value != field.default:
            yield f"{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    # A JSON string is a TOML basic string, once DEL is escaped as well.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
