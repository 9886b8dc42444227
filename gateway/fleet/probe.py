"""Finding out what a worker is, by asking it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from gateway.config import WorkerSettings
from gateway.fleet.worker import KvSource, Profile

TIMEOUT = aiohttp.ClientTimeout(total=5)


class ProbeError(Exception):
    """The worker cannot serve; the message says why."""


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Version(msgspec.Struct):
    version: str | None = None


class _Source(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


async def probe(session: aiohttp.ClientSession, settings: WorkerSettings) -> Profile:
    """Ask everything once. Raises ProbeError."""
    base = settings.url.rstrip("/")
    try:
        models = await _get(session, f"{base}/v1/models", _Models)
        if models is None or not models.data:
            raise ProbeError("it lists no model")
        version = await _get(session, f"{base}/version", _Version)
        return Profile(
            models=tuple(model.id for model in models.data),
            context_length=min((m.max_model_len for m in models.data if m.max_model_len), default=None),
            endpoint=await _endpoint(session, settings, base),
            version=version.version if version is not None else None,
            kv_sources=await _kv_sources(session, settings, base),
        )
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProbeError(f"{type(error).__name__}: {error}") from error


async def healthy(session: aiohttp.ClientSession, settings: WorkerSettings) -> str | None:
    """None when the worker says that it is well, else the reason."""
    try:
        async with session.get(f"{settings.url.rstrip('/')}/health", timeout=TIMEOUT) as response:
            # A worker without that path is judged by its answering at all.
            return None if response.status in (200, 404) else f"/health answered {response.status}"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return f"{type(error).__name__}: {error}"


async def _endpoint(session: aiohttp.ClientSession, settings: WorkerSettings, base: str) -> str:
    """The best endpoint that is there. One that exists refuses an empty body, so nothing is generated."""
    if settings.engine == "openai":
        return "openai"
    for name, path in (("generate", "/inference/v1/generate"), ("completions", "/v1/completions")):
        async with session.post(f"{base}{path}", json={}, timeout=TIMEOUT) as response:
            if response.status not in (403, 404, 405):
                return name
    return "openai"


async def _kv_sources(
    session: aiohttp.ClientSession, settings: WorkerSettings, base: str
) -> dict[int, KvSource]:
    if settings.kv_events is not None:
        return {0: KvSource(settings.kv_events, settings.kv_replay)}
    sources = await _get(session, f"{base}/kv_event_sources", dict[str, _Source])
    host = urlsplit(base).hostname or "127.0.0.1"
    return {
        int(rank): KvSource(
            connectable(source.endpoint, host),
            connectable(source.replay_endpoint, host) if source.replay_endpoint else None,
            source.topic,
        )
        for rank, source in (sources or {}).items()
        if rank.isdecimal()
    }


def connectable(endpoint: str, host: str) -> str:
    """A worker's bind address as one to connect to: wildcards become the worker's own host."""
    parts = urlsplit(endpoint)
    if parts.scheme != "tcp" or parts.hostname not in ("*", "0.0.0.0", "::"):
        return endpoint
    netloc = f"[{host}]" if ":" in host else host
    return urlunsplit(("tcp", f"{netloc}:{parts.port}", "", "", ""))


async def _get(session: aiohttp.ClientSession, url: str, kind: Any) -> Any:
    """A decoded 200 answer, None when the path is not there or says something else."""
    async with session.get(url, timeout=TIMEOUT) as response:
        if response.status != 200:
            return None
        try:
            return msgspec.json.decode(await response.read(), type=kind)
        except msgspec.DecodeError:
            return None
