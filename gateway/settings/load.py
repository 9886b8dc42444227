"""Effective settings: flag before environment before file before default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.config import Settings
from gateway.settings.fields import POOLS, WORKERS, bad_value, convert, settings_fields
from gateway.settings.pools import check_worker_pools, pools_from_document
from gateway.settings.sources import (
    Document,
    Raw,
    from_document,
    from_environment,
    from_flags,
    read_document,
)
from gateway.settings.workers import workers_from_document, workers_from_urls
from parsers.registry import FORMATS, PROFILES

DEFAULT = "default"


class Resolved(msgspec.Struct, frozen=True):
    """Effective settings, and for each key where its value came from.

    An origin is `flag --port`, `env KVGATEWAY_PORT`, `file gw.toml:12` or `default`.
    """

    settings: Settings
    origins: Mapping[str, str]
    tables: Mapping[str, Sequence[str]] = {}
    """The same for each table of an array that came from the file."""


def load_settings(flags: object, environ: Mapping[str, str], config_file: str | None = None) -> Resolved:
    """Settings from parsed flags (attributes by key, None when not given), the environment and a TOML file.

    Raises ConfigError with one line that names the key, the value and the place.
    """
    document = read_document(config_file) if config_file else Document("", {}, {})
    raw = {**from_document(document), **from_environment(environ), **from_flags(vars(flags))}
    origins = {key: raw[key].origin if key in raw else DEFAULT for key in settings_fields()}
    values = {key: _value(key, found, document) for key, found in raw.items()}
    settings = Settings(**values)
    _check_name(settings.policy, "policy", policy_names(), origins)
    _check_name(settings.profile, "profile", PROFILES, origins)
    _check_name(settings.model_format, "model_format", tuple(FORMATS), origins)
    check_worker_pools(settings, document, raw.get(WORKERS))
    tables = {
        key: [f"file {document.where(key, number)}" for number in range(len(found.value))]
        for key, found in raw.items()
        if key in (POOLS, WORKERS) and not found.is_text
    }
    return Resolved(settings, origins, tables)


def _value(key: str, raw: Raw, document: Document) -> Any:
    if key == WORKERS:
        return workers_from_urls(raw) if raw.is_text else workers_from_document(document)
    if key == POOLS:
        return pools_from_document(document)
    return convert(settings_fields()[key], raw.value, raw.origin.removeprefix("file "), is_text=raw.is_text)


def _check_name(name: str, key: str, known: tuple[str, ...], origins: Mapping[str, str]) -> None:
    if name not in known:
        where = origins[key].removeprefix("file ")
        raise bad_value(where, key, "expected one of " + ", ".join(sorted(known)), name)


def policy_names() -> tuple[str, ...]:
    """The router's policies."""
    from router.policy import POLICIES  # `--help` need not wait for it

    return tuple(POLICIES)
