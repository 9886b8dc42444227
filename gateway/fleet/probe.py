"""Finding out what a worker is, by asking it."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from gateway.config import Role, WorkerSettings
from gateway.engines.sglang import Bootstrap
from gateway.fleet.vitals import Vitals, read_vitals
from gateway.fleet.worker import KvSource, Profile

TIMEOUT = aiohttp.ClientTimeout(total=5)
SGLANG_ROLES: dict[str, Role] = {"prefill": "prefill", "decode": "decode"}
LAYOUT = ("kv_cache_dtype", "disaggregation_transfer_backend")
"""SGLang settings that a prefill and a decode worker are compared by, beside version and page size."""
SPECULATION = ("speculative_algorithm", "speculative_draft_model_path", "speculative_num_draft_tokens")


class ProbeError(Exception):
    """The worker cannot serve; the message says why."""


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None
    """Of a LoRA adapter, the model that it goes with."""


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Version(msgspec.Struct):
    version: str | None = None


class _Source(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


class _SglangEvents(msgspec.Struct):
    endpoint_port_base: int
    endpoint_host: str = "*"
    replay_endpoint_port_base: int | None = None
    topic: str = ""
    dp_size: int = 1


class _SglangInfo(msgspec.Struct, rename={"events": "kv_events", "life": "startup_time"}):
    page_size: int
    """Required: vLLM has a path of that name too, with another answer."""
    version: str | None = None
    dp_size: int = 1
    max_running_requests: int | None = None
    disaggregation_mode: str = "null"
    disaggregation_bootstrap_port: int = 8998
    events: _SglangEvents | None = None
    random_seed: int | None = None
    life: msgspec.Raw = msgspec.Raw(b"")
    """Measured times of its start: no two starts have the same."""
    schedule_low_priority_values_first: bool = False
    uses_mamba_radix_cache: bool = False


async def probe(session: aiohttp.ClientSession, settings: WorkerSettings) -> Profile:
    """Ask everything once. Raises ProbeError."""
    base = settings.url.rstrip("/")
    try:
        models = await _get(session, f"{base}/v1/models", _Models)
        if models is None or not models.data:
            raise ProbeError("it lists no model")
        common = Profile(
            models=tuple(model.id for model in models.data),
            adapters=tuple(model.id for model in models.data if model.parent),
            context_length=min((m.max_model_len for m in models.data if m.max_model_len), default=None),
            endpoint="openai",
            max_num_seqs=settings.max_num_seqs,
        )
        if settings.engine == "openai":
            return common
        if settings.engine in ("auto", "sglang"):
            answer = await _get(session, f"{base}/server_info", msgspec.Raw)
            profile = _sglang(settings, base, common, bytes(answer)) if answer is not None else None
            if profile is not None:
                return profile
            if settings.engine == "sglang":
                raise ProbeError("it is configured as SGLang and has no /server_info of SGLang's")
        return await _vllm(session, settings, base, common)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProbeError(f"{type(error).__name__}: {error}") from error


async def healthy(
    session: aiohttp.ClientSession, settings: WorkerSettings, seconds: float = 5.0
) -> str | None:
    """None when the worker says within that many seconds that it is well, else the reason."""
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with session.get(f"{settings.url.rstrip('/')}/health", timeout=timeout) as response:
            # A worker without that path is judged by its answering at all.
            return None if response.status in (200, 404) else f"/health answered {response.status}"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return f"{type(error).__name__}: {error}"


async def vitals(session: aiohttp.ClientSession, settings: WorkerSettings) -> Vitals | None:
    """What its metrics say; None when there are none to be had now."""
    try:
        async with session.get(f"{settings.url.rstrip('/')}/metrics", timeout=TIMEOUT) as response:
            return read_vitals(await response.text()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


class Look(NamedTuple):
    """A worker that is being watched."""

    life: str | None = None
    """What tells this start of it from others, as in its profile; None when it does not say."""
    vitals: Vitals | None = None


async def look_at(session: aiohttp.ClientSession, settings: WorkerSettings, profile: Profile) -> Look:
    """Ask what may have changed; never fails."""
    if profile.engine == "vllm":
        read = await vitals(session, settings)
        return Look(None if read is None or read.started is None else str(read.started), read)
    if profile.engine == "sglang":
        try:
            info = await _get(session, f"{settings.url.rstrip('/')}/server_info", _SglangInfo)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return Look()
        return Look(_sglang_life(info) if info is not None else None)
    return Look()


def _sglang_life(info: _SglangInfo) -> str:
    return f"{info.random_seed} {bytes(info.life).decode()}"


async def _vllm(
    session: aiohttp.ClientSession, settings: WorkerSettings, base: str, common: Profile
) -> Profile:
    version = await _get(session, f"{base}/version", _Version)
    read = await vitals(session, settings) or Vitals()
    sources = await _kv_sources(session, settings, base)
    endpoint = await _endpoint(session, base)
    return msgspec.structs.replace(
        common,
        endpoint=endpoint,
        engine="openai" if endpoint == "openai" else "vllm",
        version=version.version if version is not None else None,
        kv_sources=sources,
        dp_ranks=max([*(rank + 1 for rank in sources), read.engines]),
        block_size=read.block_size,
        life=str(read.started) if read.started is not None else None,
        side_channel=settings.side_channel,
        has_connector=read.transfers is not None,
    )


async def _endpoint(session: aiohttp.ClientSession, base: str) -> str:
    """The best endpoint that is there. One that exists refuses an empty body, so nothing is generated."""
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


def _sglang(settings: WorkerSettings, base: str, common: Profile, answer: bytes) -> Profile | None:
    """None: the answer is not SGLang's. Raises ProbeError: its role is not the configured one."""
    try:
        info = msgspec.json.decode(answer, type=_SglangInfo)
        everything: dict[str, Any] = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return None
    role = SGLANG_ROLES.get(info.disaggregation_mode)
    if settings.role != "aggregated" and settings.role != role:
        raise ProbeError(f"it is configured as {settings.role} and runs as {role or 'aggregated'}")
    host = urlsplit(base).hostname or "127.0.0.1"
    return msgspec.structs.replace(
        common,
        endpoint="sglang",
        engine="sglang",
        version=info.version,
        role=role or "aggregated",
        kv_sources=_sglang_sources(settings, info, host, role),
        dp_ranks=info.dp_size,
        block_size=info.page_size,
        max_num_seqs=settings.max_num_seqs or info.max_running_requests,
        life=_sglang_life(info),
        bootstrap=(
            Bootstrap(host, info.disaggregation_bootstrap_port, info.dp_size) if role == "prefill" else None
        ),
        has_connector=role is not None,
        states_at_ends=info.uses_mamba_radix_cache,
        layout={name: str(everything[name]) for name in LAYOUT if name in everything},
        speculation=" ".join(str(everything[name]) for name in SPECULATION if everything.get(name)),
        low_priority_first=info.schedule_low_priority_values_first,
    )


def _sglang_sources(
    settings: WorkerSettings, info: _SglangInfo, host: str, role: Role | None
) -> dict[int, KvSource]:
    if settings.kv_events is not None:
        return {0: KvSource(settings.kv_events, settings.kv_replay)}
    events = info.events
    if events is None or role == "decode":  # a decode worker advertises events and sends none
        return {}
    bound = events.endpoint_host

    def endpoint(port: int) -> str:
        return connectable(f"tcp://{bound}:{port}", host)

    replay = events.replay_endpoint_port_base
    return {
        rank: KvSource(
            endpoint(events.endpoint_port_base + rank),
            endpoint(replay + rank) if replay is not None else None,
            events.topic,
        )
        for rank in range(events.dp_size)
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
