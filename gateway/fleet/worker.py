"""What the gateway knows of one worker."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from urllib.parse import urlsplit

import msgspec

from gateway.config import WorkerSettings
from gateway.engines.openai import OpenAiEngine
from gateway.engines.vllm import VllmEngine


class WorkerState(Enum):
    CONNECTING = "connecting"
    READY = "ready"
    DOWN = "down"


class KvSource(msgspec.Struct, frozen=True):
    """Where one rank's KV events come from; connectable ZeroMQ addresses."""

    endpoint: str
    replay: str | None = None
    topic: str = ""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What probing found out."""

    models: tuple[str, ...]
    context_length: int | None
    endpoint: str
    """generate, completions or openai."""
    version: str | None = None
    kv_sources: Mapping[int, KvSource] = {}
    """By data-parallel rank."""


class Worker:
    """One configured worker, its state and, when ready, its engine client."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.name = settings.name or urlsplit(settings.url).netloc.rpartition("@")[2]
        self.state = WorkerState.CONNECTING
        self.reason = "not probed yet"
        self.profile: Profile | None = None
        self.engine: VllmEngine | OpenAiEngine | None = None

    def __repr__(self) -> str:
        return f"<Worker {self.name} {self.state.value}: {self.reason}>"
