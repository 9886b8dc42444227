"""What the gateway knows of one worker."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from urllib.parse import urlsplit

import msgspec

from gateway.config import Role, WorkerSettings
from gateway.engines.openai import OpenAiEngine
from gateway.engines.sglang import Bootstrap, SglangEngine
from gateway.engines.vllm import VllmEngine

Engine = VllmEngine | SglangEngine | OpenAiEngine


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
    adapters: tuple[str, ...] = ()
    """Those of them that are LoRA adapters."""
    context_length: int | None
    endpoint: str
    """generate, completions, sglang or openai."""
    engine: str = "openai"
    """vllm, sglang, or openai for any other."""
    version: str | None = None
    role: Role | None = None
    """What the engine itself says that it is for."""
    kv_sources: Mapping[int, KvSource] = {}
    """By data-parallel rank."""
    dp_ranks: int = 1
    block_size: int | None = None
    """Tokens in a block of the attention group, as the worker says; its events say it for every group."""
    max_num_seqs: int | None = None
    life: str | None = None
    """Tells one start of the worker from another."""
    side_channel: str | None = None
    """Host and port where decode workers learn of its memory (vLLM)."""
    bootstrap: Bootstrap | None = None
    """Where decode workers find a prefill worker (SGLang)."""
    has_connector: bool = False
    """It can hand KV caches over."""
    layout: Mapping[str, str] = {}
    """Engine settings that two workers of a pair must share."""
    states_at_ends: bool = False
    """It keeps the states of a hybrid model at the ends of requests, and its events do not tell (SGLang)."""
    speculation: str = ""
    """Its speculative decoding; empty for none."""
    low_priority_first: bool = False


class Worker:
    """One configured worker, its state and, when ready, its engine client."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.name = settings.name or urlsplit(settings.url).netloc.rpartition("@")[2]
        self.state = WorkerState.CONNECTING
        self.reason = "not probed yet"
        self.profile: Profile | None = None
        self.engine: Engine | None = None

    @property
    def role(self) -> Role:
        """What it is for: as its engine says, else as configured."""
        profile = self.profile
        return profile.role if profile is not None and profile.role is not None else self.settings.role

    def __repr__(self) -> str:
        return f"<Worker {self.name} {self.state.value}: {self.reason}>"
