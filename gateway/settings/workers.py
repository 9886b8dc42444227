"""Workers from a list of URLs or from `[[workers]]` tables, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from gateway.config import ConfigError, WorkerSettings
from gateway.settings.fields import WORKERS, bad_value, convert, worker_fields
from gateway.settings.sources import Document, Raw, check_keys

Where = Callable[..., str]
"""The place of a worker's key, or of the whole worker without one."""


def workers_from_urls(raw: Raw) -> tuple[WorkerSettings, ...]:
    def where(index: int, key: str = "") -> str:
        return raw.origin

    workers = tuple(WorkerSettings(url=url) for url in raw.value)
    return _checked(workers, where)


def workers_from_document(document: Document) -> tuple[WorkerSettings, ...]:
    def where(index: int, *keys: str) -> str:
        return document.where(WORKERS, index, *keys)

    tables = document.values[WORKERS]
    if not isinstance(tables, list):
        raise bad_value(document.where(WORKERS), WORKERS, "expected an array of tables", tables)
    return _checked(tuple(_worker(table, index, document) for index, table in enumerate(tables)), where)


def _worker(table: object, index: int, document: Document) -> WorkerSettings:
    place = document.where(WORKERS, index)
    if not isinstance(table, Mapping):
        raise bad_value(place, WORKERS, "expected a table", table)
    fields = worker_fields()
    check_keys(table, fields, document, WORKERS, index)
    if "url" not in table:
        raise ConfigError(f"{place}: url: missing, a worker needs one")
    if isinstance(table.get("labels"), Mapping):
        _check_labels(table["labels"], index, document)
    values: dict[str, Any] = {
        key: convert(fields[key], value, document.where(WORKERS, index, key), is_text=False)
        for key, value in table.items()
    }
    return WorkerSettings(**values)


def _check_labels(labels: Mapping[str, Any], index: int, document: Document) -> None:
    for label, value in labels.items():
        if not isinstance(value, str):
            place = document.where(WORKERS, index, "labels", label)
            raise bad_value(place, f"labels.{label}", "expected str", value)


def _checked(workers: Sequence[WorkerSettings], where: Where) -> tuple[WorkerSettings, ...]:
    names: set[str] = set()
    for index, worker in enumerate(workers):
        _check_url(worker.url, where(index, "url"))
        _check_endpoint(worker.kv_events, "kv_events", where(index, "kv_events"))
        _check_endpoint(worker.kv_replay, "kv_replay", where(index, "kv_replay"))
        if worker.side_channel is not None:
            problem = _endpoint_problem(f"tcp://{worker.side_channel}")
            if problem:
                where_it_is = where(index, "side_channel")
                raise bad_value(where_it_is, "side_channel", "expected HOST:PORT", worker.side_channel)
        if worker.kv_replay and not worker.kv_events:
            raise bad_value(where(index, "kv_replay"), "kv_replay", "needs kv_events too", worker.kv_replay)
        if worker.name in names:
            raise bad_value(where(index, "name"), "name", "two workers cannot share a name", worker.name)
        names.add(worker.name)
    return tuple(workers)


def _check_url(url: str, where: str) -> None:
    problem = _url_problem(url)
    if problem:
        raise bad_value(where, "url", problem, url)


def _url_problem(url: str) -> str | None:
    if not url.isprintable() or " " in url:
        return "expected a URL without spaces"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"expected a URL ({error})"
    if parts.scheme not in ("http", "https"):
        return "expected a URL that starts with http:// or https://"
    if not parts.hostname:
        return "expected a URL with a host"
    if port == 0:
        return "expected a port from 1 to 65535"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "expected a URL without user, query or fragment"
    return None


def _check_endpoint(endpoint: str | None, key: str, where: str) -> None:
    problem = _endpoint_problem(endpoint) if endpoint is not None else None
    if problem:
        raise bad_value(where, key, problem, endpoint)


def _endpoint_problem(endpoint: str) -> str | None:
    scheme, _, address = endpoint.partition("://")
    if scheme in ("ipc", "inproc") and address:
        return None
    if scheme != "tcp":
        return "expected tcp://HOST:PORT or ipc://PATH"
    host, _, port = address.rpartition(":")
    if host == "*":
        return "expected the worker's own host, '*' is only for its bind address"
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        return "expected tcp://HOST:PORT"
    return None
