"""The one typed place for settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from parsers.registry import DEFAULT_FORMAT

Role = Literal["aggregated", "prefill", "decode"]
EngineKind = Literal["auto", "vllm", "openai"]


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. `name` defaults to the host and port of `url`."""

    url: str
    name: str = ""
    role: Role = "aggregated"
    engine: EngineKind = "auto"
    kv_events: str | None = None
    kv_replay: str | None = None
    labels: Mapping[str, str] = {}
    max_num_seqs: int | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Effective settings of `kvgateway serve`."""

    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 8090
    tokenizer: str | None = None
    """Directory with a `tiktoken.model`; None is the small vocabulary in the package."""
    model_format: str = DEFAULT_FORMAT
    context_length: int = 1_048_576
    policy: str = "kv"
    drain_seconds: float = 30.0
    max_body_bytes: int = 64 * 1024 * 1024
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    workers: Sequence[WorkerSettings] = ()
