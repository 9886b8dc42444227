"""What two workers tell each other before bytes move, in vLLM 0.32's own fields.

A payload is a MessagePack map of a compatibility hash and the agent's metadata, itself a MessagePack map, so
that a reader with another layout sees the hash before it has to understand the rest.
"""

from __future__ import annotations

import hashlib

import msgspec

from simulator.kv.arena import Arena
from simulator.replies import VLLM_VERSION

GET_META = b"get_meta_msg"
CONNECTOR_VERSION = 14
TRANSFER_MODE = "pull"


class AgentMetadata(msgspec.Struct, kw_only=True):
    """One worker's memory, for a peer that will read it. Sizes are bytes."""

    engine_id: str
    agent_metadata: bytes
    """What the transport itself needs: NIXL's blob."""
    kv_caches_base_addr: list[int]
    device_id: int
    num_blocks: int
    block_lens: list[int]
    block_strides: list[int]
    kv_cache_layout: str
    block_size: int
    ssm_sizes: tuple[int, int]
    attn_backend_name: str
    physical_blocks_per_logical_kv_block: int
    region_num_blocks: list[int] | None = None
    region_group_ids: list[int] | None = None
    region_names: list[str] | None = None
    region_mem_types: list[str] | None = None
    dcp_size: int = 1
    pcp_size: int = 1
    region_members: list[list[str]] = []


class Payload(msgspec.Struct):
    """What the side channel answers with."""

    compatibility_hash: str
    agent_metadata_bytes: bytes


def describe(engine_id: str, blob: bytes, arena: Arena, state_bytes: int) -> AgentMetadata:
    """The metadata of a worker with one region; `state_bytes` is a state's size, 0 without state groups."""
    return AgentMetadata(
        engine_id=engine_id,
        agent_metadata=blob,
        kv_caches_base_addr=[arena.address],
        device_id=0,
        num_blocks=arena.num_blocks,
        block_lens=[arena.block_bytes],
        block_strides=[arena.block_bytes],
        kv_cache_layout="HND",
        block_size=arena.block_size,
        ssm_sizes=(0, state_bytes),
        attn_backend_name="SIMULATED",
        physical_blocks_per_logical_kv_block=1,
        region_mem_types=["DRAM"],
    )


def compatibility_hash(model: str, block_bytes: int, hybrid: bool, transport: str) -> str:
    """Equal for workers that can read each other's blocks."""
    factors = {
        "vllm_version": VLLM_VERSION,
        "nixl_connector_version": CONNECTOR_VERSION,
        "model": model,
        "block_bytes": block_bytes,
        "is_hma_enabled": hybrid,
        "transfer_mode": TRANSFER_MODE,
        "transport": transport,
    }
    return hashlib.sha256(msgspec.json.encode(factors, order="sorted")).hexdigest()


def pack(hash_: str, metadata: AgentMetadata) -> bytes:
    """A payload's bytes."""
    return msgspec.msgpack.encode(Payload(hash_, msgspec.msgpack.encode(metadata)))
