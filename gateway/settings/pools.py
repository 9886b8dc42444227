"""Pools from `[[pools]]` tables, and the pools that workers name, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.config import ConfigError, PoolSettings, Settings
from gateway.settings.fields import POOLS, WORKERS, bad_value, convert, pool_fields
from gateway.settings.sources import Document, Raw, check_keys
from parsers.registry import FORMATS


def pools_from_document(document: Document) -> tuple[PoolSettings, ...]:
    tables = document.values[POOLS]
    if not isinstance(tables, list):
        raise bad_value(document.where(POOLS), POOLS, "expected an array of tables", tables)
    pools = tuple(_pool(table, index, document) for index, table in enumerate(tables))
    _check_names(pools, document)
    return pools


def _pool(table: object, index: int, document: Document) -> PoolSettings:
    place = document.where(POOLS, index)
    if not isinstance(table, Mapping):
        raise bad_value(place, POOLS, "expected a table", table)
    fields = pool_fields()
    check_keys(table, fields, document, POOLS, index)
    if "name" not in table:
        raise ConfigError(f"{place}: name: missing, a pool needs one")
    values: dict[str, Any] = {
        key: convert(fields[key], value, document.where(POOLS, index, key), is_text=False)
        for key, value in table.items()
    }
    return PoolSettings(**values)


def _check_names(pools: Sequence[PoolSettings], document: Document) -> None:
    names: set[str] = set()
    for index, pool in enumerate(pools):
        if pool.name in names:
            where = document.where(POOLS, index, "name")
            raise bad_value(where, "name", "two pools cannot share a name", pool.name)
        names.add(pool.name)
        if pool.model_format is not None and pool.model_format not in FORMATS:
            where = document.where(POOLS, index, "model_format")
            problem = "expected one of " + ", ".join(sorted(FORMATS))
            raise bad_value(where, "model_format", problem, pool.model_format)


def check_worker_pools(settings: Settings, document: Document, workers: Raw | None) -> None:
    """Raises ConfigError for a worker whose pool does not exist, or that must name one and does not."""
    names = [pool.name for pool in settings.effective_pools()]
    for index, worker in enumerate(settings.workers):
        if worker.pool in names or (not worker.pool and len(names) == 1):
            continue
        where = document.where(WORKERS, index, "pool")
        if workers is not None and workers.is_text:
            where = workers.origin
        raise bad_value(where, "pool", "expected one of " + ", ".join(names), worker.pool)
