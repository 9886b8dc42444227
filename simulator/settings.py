"""Settings of one simulated worker."""

from __future__ import annotations

import msgspec

from simulator.groups import Group, parse_groups

MAX_CONTEXT = 1_048_576


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
    tokens_per_step: int = 1
    speedup: float = 1.0
    """Divides the two times above; a request's own `delay_ms` is left alone."""
    hash_seed: str = "vllm-none-hash"
    kv_events_port: int = 0
    kv_replay_port: int = 0
    kv_topic: str = "kv-events"
    kv_buffer_steps: int = 10_000
    force_include_usage: bool = False
    """Usage on every chunk of a completions stream, as vLLM's flag of that name."""
    keep_alive_seconds: float = 5.0

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
        if self.speedup <= 0 or min(self.prefill_seconds_per_token, self.decode_seconds_per_step) < 0:
            raise ValueError("times must not be negative and speedup must be above 0")
