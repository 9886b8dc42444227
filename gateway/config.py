"""The one typed place for settings.

Each field of `Settings` is a flag, an environment variable and a key of the TOML file, with the help text and
the range that its annotation gives. `gateway.settings` reads them; docs/operations.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from parsers.registry import DEFAULT_FORMAT, DEFAULT_PROFILE

Role = Literal["aggregated", "prefill", "decode"]
EngineKind = Literal["auto", "vllm", "sglang", "openai"]
ToolCallIds = Literal["random", "name_index"]
ReasoningEfforts = Literal["portable", "strict"]
ConstrainedBy = Literal["worker", "prompt"]
LinkClass = Literal["mnnvl", "nvlink", "rdma", "shm", "tcp"]
"""NVLink across nodes, NVLink inside one, network cards that read memory, memory of one host, sockets; the
best comes first."""
Images = Literal["refused", "forwarded"]
SessionMode = Literal["hard", "soft"]
LogLevel = Literal["debug", "info", "warning", "error"]

NonEmpty = Annotated[str, Meta(min_length=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class ConfigError(Exception):
    """A setting that cannot be used. The message is one line that names the key, its value and its place."""


class StartupError(Exception):
    """The service cannot start (port taken, tokenizer unreadable). The message is one line."""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: a `[[workers]]` table of the file, or only its URL from a flag."""

    url: Annotated[str, Meta(description="Base URL of the worker's HTTP API")]
    name: Annotated[
        str, Meta(description="Name in logs and metrics; the URL's host and port when left out")
    ] = ""
    role: Annotated[Role, Meta(description="What the worker does for a request")] = "aggregated"
    engine: Annotated[EngineKind, Meta(description="Protocol it speaks; `auto` asks the worker")] = "auto"
    kv_events: Annotated[str | None, Meta(description="ZeroMQ endpoint where it publishes KV events")] = None
    kv_replay: Annotated[str | None, Meta(description="ZeroMQ endpoint that replays missed KV events")] = None
    pool: Annotated[
        str,
        Meta(description="Pool that it belongs to, of those in `[[pools]]`; may be left out if there is one"),
    ] = ""
    labels: Annotated[Mapping[str, str], Meta(description="Labels, a table of strings")] = {}
    max_num_seqs: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Sequences that it runs at once")
    ] = None
    side_channel: Annotated[
        str | None,
        Meta(description="HOST:PORT of vLLM's NIXL side channel; without it learned from prefill answers"),
    ] = None

    def __post_init__(self) -> None:
        if not self.name:
            msgspec.structs.force_setattr(self, "name", host_and_port(self.url))


DEFAULT_POOL = "default"


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that take the same token ids for the same chat: a `[[pools]]` table of the file."""

    name: Annotated[NonEmpty, Meta(description="Name that workers give as their `pool`")]
    tokenizer: Annotated[
        NonEmpty | None,
        Meta(description="Directory with a `tiktoken.model`; `tokenizer` above when left out"),
    ] = None
    model_format: Annotated[
        NonEmpty | None, Meta(description="Text protocol of the model; `model_format` above when left out")
    ] = None
    constrained_by: Annotated[
        ConstrainedBy | None,
        Meta(description="What keeps answers to a form; `constrained_by` above when left out"),
    ] = None
    required_link: Annotated[
        LinkClass | None,
        Meta(description="Least link of a prefill/decode pair; `required_link` above when left out"),
    ] = None
    images: Annotated[
        Images | None, Meta(description="What becomes of images; `images` above when left out")
    ] = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Effective settings of `kvgateway serve`."""

    host: Annotated[NonEmpty, Meta(description="Address that clients connect to")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port that clients connect to; 0 lets the system choose")] = 8000
    admin_host: Annotated[NonEmpty, Meta(description="Address of the admin API")] = "127.0.0.1"
    admin_port: Annotated[Port, Meta(description="Port of the admin API; 0 lets the system choose")] = 8090
    tokenizer: Annotated[
        NonEmpty | None,
        Meta(
            description="Directory with a `tiktoken.model`; the small vocabulary in the package when left out"
        ),
    ] = None
    model_format: Annotated[str, Meta(description="Text protocol of the model")] = DEFAULT_FORMAT
    profile: Annotated[
        str,
        Meta(description="Contract with clients; the strict one refuses what the model's vendor refuses"),
    ] = DEFAULT_PROFILE
    tool_call_ids: Annotated[
        ToolCallIds,
        Meta(description="Ids of tool calls: unique ones, or the tool's name and the call's place"),
    ] = "random"
    reasoning_efforts: Annotated[
        ReasoningEfforts,
        Meta(description="What becomes of efforts that the model does not have: the nearest, or refused"),
    ] = "portable"
    constrained_by: Annotated[
        ConstrainedBy,
        Meta(description="What keeps answers to a form: a grammar of the worker, or only the prompt"),
    ] = "worker"
    images: Annotated[
        Images, Meta(description="What becomes of images in chats: refused, or forwarded to the workers")
    ] = "refused"
    image_seconds: Annotated[Seconds, Meta(description="Seconds that an image may take to be fetched")] = 10.0
    max_image_bytes: Annotated[int, Meta(ge=1, description="Most bytes of a chat's images together")] = (
        32 * 1024 * 1024
    )
    context_length: Annotated[
        int, Meta(ge=1, description="Most tokens of a prompt and its answer together")
    ] = 1_048_576
    policy: Annotated[
        str,
        Meta(description="One of kv, least_loaded, power_of_two, round_robin, random, session"),
    ] = "kv"
    required_link: Annotated[
        LinkClass | None,
        Meta(description="Least link of a prefill/decode pair; better ones are only preferred if left out"),
    ] = None
    measured_links: Annotated[
        NonEmpty | None, Meta(description="JSON file with links that `kvgateway fabric-probe run` measured")
    ] = None
    session_header: Annotated[
        NonEmpty, Meta(description="Request header that names a session, for the policy `session`")
    ] = "X-Session-Id"
    session_mode: Annotated[
        SessionMode,
        Meta(description="Whether a session waits for its worker, or another takes it while that is busy"),
    ] = "soft"
    session_seconds: Annotated[
        Seconds, Meta(description="Seconds since its last request for which a session is remembered")
    ] = 3600.0
    busy_queued_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Queued prompt tokens from which on a worker is passed over while others have less"),
    ] = None
    local_prefill_tokens: Annotated[
        int,
        Meta(
            ge=0, description="Uncached tokens up to which a decode worker prefills a prompt itself; 0: never"
        ),
    ] = 0
    salt_per_key: Annotated[
        bool, Meta(description="Keep the KV caches of API keys apart, so that none can probe another's")
    ] = False
    snapshot_file: Annotated[
        NonEmpty | None,
        Meta(description="File that keeps what workers hold over a restart of the gateway"),
    ] = None
    snapshot_seconds: Annotated[Seconds, Meta(description="Seconds between two writes of that file")] = 60.0
    assumed_cache_seconds: Annotated[
        Seconds,
        Meta(
            description="Seconds for which a worker without KV events is taken to hold a prompt it was sent"
        ),
    ] = 600.0
    assumed_cache_tokens: Annotated[
        int,
        Meta(ge=4096, description="Tokens that it is taken to hold at most; its reports correct this"),
    ] = 1_000_000
    kv_lease_seconds: Annotated[
        Seconds, Meta(description="Seconds that prefill workers keep a prompt's KV blocks for decode")
    ] = 30.0
    health_seconds: Annotated[Seconds, Meta(description="Seconds between two looks at a worker's health")] = (
        2.0
    )
    health_timeout_seconds: Annotated[
        Seconds, Meta(description="Seconds that a worker has to say that it is well; three times in a row")
    ] = 5.0
    queue_limit: Annotated[
        int, Meta(ge=0, description="Most requests that wait for workers that are full; more are refused")
    ] = 1024
    queue_seconds: Annotated[Seconds, Meta(description="Seconds that a request waits so at most")] = 30.0
    continuation_limit: Annotated[
        int,
        Meta(
            ge=0, description="Times that an answer is continued elsewhere when its worker fails; 0 for never"
        ),
    ] = 3
    drain_seconds: Annotated[
        Seconds, Meta(description="Seconds that streams under way get to finish after SIGTERM")
    ] = 30.0
    keys_file: Annotated[
        NonEmpty | None, Meta(description="TOML file of API keys' hashes and limits; open to all without it")
    ] = None
    tls_certificate: Annotated[
        NonEmpty | None, Meta(description="PEM file of the certificate chain; both listeners then speak TLS")
    ] = None
    tls_key: Annotated[
        NonEmpty | None,
        Meta(description="PEM file of its private key, if that is a file of its own"),
    ] = None
    max_body_bytes: Annotated[int, Meta(ge=1, description="Largest request body")] = 64 * 1024 * 1024
    body_seconds: Annotated[Seconds, Meta(description="Seconds in which a request body must come in")] = 60.0
    idle_seconds: Annotated[
        Seconds, Meta(description="Seconds that a client's connection may stay open between requests")
    ] = 75.0
    max_messages: Annotated[int, Meta(ge=1, description="Most messages of a chat")] = 20_000
    max_tools: Annotated[int, Meta(ge=1, description="Most tools that a chat declares")] = 1_024
    strict: Annotated[
        bool, Meta(description="Refuse request fields that are not known, instead of passing them to workers")
    ] = False
    sse_keep_alive_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400, description="Seconds without an event before a stream gets a comment; 0: none"),
    ] = 15.0
    inflight_body_bytes: Annotated[
        int, Meta(ge=1, description="Most bytes of the bodies of all requests under way; more are refused")
    ] = 1024 * 1024 * 1024
    log_level: Annotated[LogLevel, Meta(description="Least severe log lines to write")] = "info"
    pools: Annotated[
        Sequence[PoolSettings],
        Meta(
            description="Groups of workers with their own encoding, as `[[pools]]` tables; one group if none"
        ),
    ] = ()
    workers: Annotated[
        Sequence[WorkerSettings],
        Meta(description="Workers; a flag or the environment gives URLs, the file `[[workers]]` tables"),
    ] = ()

    def effective_pools(self) -> Sequence[PoolSettings]:
        """The pools with what they leave out filled in; one when none is configured."""
        pools = self.pools or (PoolSettings(name=DEFAULT_POOL),)
        return [
            PoolSettings(
                name=pool.name,
                tokenizer=pool.tokenizer or self.tokenizer,
                model_format=pool.model_format or self.model_format,
                constrained_by=pool.constrained_by or self.constrained_by,
                required_link=pool.required_link or self.required_link,
                images=pool.images or self.images,
            )
            for pool in pools
        ]

    def effective_workers(self) -> Sequence[WorkerSettings]:
        """The workers with the names of their pools."""
        only = self.effective_pools()[0].name
        return [msgspec.structs.replace(worker, pool=worker.pool or only) for worker in self.workers]


def host_and_port(url: str) -> str:
    """The `host:port` part of a URL; the text itself when it is no URL."""
    try:
        return urlsplit(url).netloc or url
    except ValueError:
        return url
