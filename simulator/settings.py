"""Settings of one simulated worker."""

from __future__ import annotations

from typing import Literal

import msgspec

from simulator.groups import Group, parse_groups

MAX_CONTEXT = 1_048_576

Role = Literal["aggregated", "prefill", "decode"]
TransportName = Literal["auto", "nixl", "inline", "none"]
FailurePolicy = Literal["fail", "recompute"]


class SimulatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker can be told. Times are seconds at `speedup` 1."""

    name: str = "sim"
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one; so do the two ports below."""
    model: str = "moonshotai/Kimi-K3"
    model_format: str = "kimi_k3"
    tokenizer: str | None = None
    """Directory with a `tiktoken.model`; None is the small vocabulary in the package."""
    block_size: int = 32
    num_blocks: int = 40_960
    """KV blocks of a rank's pool, one of which is never handed out."""
    kv_groups: str = "attention"
    """The model's KV groups, as `groups.parse_groups` reads them."""
    dp_size: int = 1
    """Data-parallel ranks, each with a pool and a publisher of its own."""
    max_model_len: int | None = None
    """None: the pool's capacity, at most 1,048,576 tokens."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    """Prompt tokens of one prefill step; each step publishes its blocks."""
    prefill_seconds_per_token: float = 2e-5
    decode_seconds_per_step: float = 0.01
    decode_seconds_per_sequence: float = 0.0
    """Added to a decode step for each sequence in it."""
    jitter: float = 0.0
    """Share, 0 to 1, by which a step may take more or less time."""
    tokens_per_step: int = 1
    speedup: float = 1.0
    """Divides the times above; a request's own `delay_ms` is left alone."""
    hash_seed: str = "vllm-none-hash"
    kv_events_port: int = 0
    kv_replay_port: int = 0
    kv_topic: str = "kv-events"
    kv_buffer_steps: int = 10_000
    force_include_usage: bool = False
    """Usage on every chunk of a completions stream, as vLLM's flag of that name."""
    disable_scale_out: bool = False
    """Refuse what a vLLM refuses that was started without --enable-scale-out."""
    keep_alive_seconds: float = 5.0
    role: Role = "aggregated"
    """Says what the worker is meant for, and with that whether it needs a transport. Any worker that has one
    takes both legs of a disaggregated request, whatever its role."""
    transport: TransportName = "auto"
    """What moves KV blocks between workers. `auto` is nixl, or none for an aggregated worker."""
    kv_bytes_per_token: int | None = None
    """KV of one token in one group's block, a multiple of 8. None: 128, or 8 where nothing moves blocks."""
    side_channel_host: str = "127.0.0.1"
    """Where the side channel listens, and what prefill legs tell decode workers."""
    side_channel_port: int = 0
    """0 takes a free one; data-parallel rank N listens on the port plus N."""
    kv_lease_seconds: float = 30.0
    """How long a prefill worker keeps blocks that nobody reads or sends heartbeats for."""
    handshake_seconds: float = 5.0
    """How long to wait for a peer's side channel."""
    kv_load_failure_policy: FailurePolicy = "fail"
    """What a failed transfer does to its request: an error, or the prompt computed here."""
    survive_incomplete_params: bool = False
    """Compute the prompt where a decode leg's parameters lack something, instead of dying as vLLM does."""

    @property
    def kv_slot_bytes(self) -> int:
        """Bytes of one token's KV in one group."""
        if self.kv_bytes_per_token is not None:
            return self.kv_bytes_per_token
        return 8 if self.kv_transport == "none" else 128

    @property
    def kv_transport(self) -> TransportName:
        """The transport, with `auto` resolved."""
        if self.transport != "auto":
            return self.transport
        return "none" if self.role == "aggregated" else "nixl"

    @property
    def groups(self) -> tuple[Group, ...]:
        """The model's KV groups. Raises ValueError."""
        return parse_groups(self.kv_groups)

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence that fits in a rank's pool when nothing else runs."""
        sparse = [group for group in self.groups if not group.is_full]
        most = sum(group.most_blocks(self.max_num_batched_tokens, self.block_size) for group in sparse)
        # A short sequence needs no more blocks in a sparse group than in the full one.
        return max(self.num_blocks - 1 - most, (self.num_blocks - 1) // len(self.groups)) * self.block_size

    @property
    def context_length(self) -> int:
        """Largest prompt and output together, in tokens."""
        return min(MAX_CONTEXT, self.capacity) if self.max_model_len is None else self.max_model_len

    def check(self) -> None:
        """Raise ValueError for values that cannot work together."""
        if self.num_blocks < 2 or self.block_size < 1:
            raise ValueError("a pool needs at least 2 blocks of at least 1 token")
        if self.context_length > self.capacity:
            raise ValueError(f"max_model_len {self.context_length} does not fit in {self.num_blocks} blocks")
        if (
            min(
                self.max_num_seqs,
                self.max_num_batched_tokens,
                self.tokens_per_step,
                self.kv_buffer_steps,
                self.dp_size,
            )
            < 1
        ):
            raise ValueError("counts must be at least 1")
        times = (
            self.prefill_seconds_per_token,
            self.decode_seconds_per_step,
            self.decode_seconds_per_sequence,
        )
        if self.speedup <= 0 or min(times) < 0 or not 0 <= self.jitter <= 1:
            raise ValueError("times must not be negative, jitter must be 0 to 1 and speedup above 0")
        if self.kv_slot_bytes < 8 or self.kv_slot_bytes % 8:
            raise ValueError("the bytes of a token's KV must be a multiple of 8")
        if min(self.kv_lease_seconds, self.handshake_seconds) <= 0:
            raise ValueError("lease and handshake times must be above 0")
