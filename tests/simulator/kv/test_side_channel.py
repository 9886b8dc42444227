"""The handshake as a vLLM worker makes it: its frames, its classes."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from simulator.kv.arena import Arena
from simulator.kv.metadata import compatibility_hash, describe, pack
from simulator.kv.side_channel import SideChannel, ask
from simulator.kv.transport import TransferError

HASH = compatibility_hash("m", 4096, False, "nixl")


@dataclasses.dataclass
class VllmPayload:
    """vLLM 0.32's NixlHandshakePayload."""

    compatibility_hash: str
    agent_metadata_bytes: bytes


@dataclasses.dataclass
class VllmMetadata:
    """The fields of vLLM's NixlAgentMetadata that have no default, in its order and of its types."""

    engine_id: str
    agent_metadata: bytes
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
    dcp_size: int = 1
    pcp_size: int = 1
    region_mem_types: list[str] | None = None


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
async def endpoint(context: zmq.asyncio.Context) -> AsyncIterator[str]:
    arena = Arena(8, 32, 128)
    channel = SideChannel(context, pack(HASH, describe("engine-1", b"blob", arena, 0)))
    yield f"tcp://127.0.0.1:{channel.start('127.0.0.1', 0)}"
    await channel.close()


async def request(context: zmq.asyncio.Context, endpoint: str, message: Any) -> list[bytes]:
    socket = context.socket(zmq.REQ)
    try:
        socket.connect(endpoint)
        await socket.send(message)
        frames: list[bytes] = await socket.recv_multipart()
        return frames
    finally:
        socket.close(linger=0)


async def test_vllms_own_classes_read_the_answer(context: zmq.asyncio.Context, endpoint: str) -> None:
    payload, clock = await request(context, endpoint, msgspec.msgpack.encode((b"get_meta_msg", 0, 0)))
    assert isinstance(msgspec.msgpack.decode(clock), float)
    handshake = msgspec.msgpack.decode(payload, type=VllmPayload)
    assert len(bytes.fromhex(handshake.compatibility_hash)) == 32
    metadata = msgspec.msgpack.decode(handshake.agent_metadata_bytes, type=VllmMetadata)
    assert (metadata.engine_id, metadata.agent_metadata) == ("engine-1", b"blob")
    assert (metadata.num_blocks, metadata.block_size, metadata.block_lens) == (8, 32, [4096])
    assert metadata.block_strides == metadata.block_lens
    assert metadata.region_mem_types == ["DRAM"]


async def test_a_worker_asks_likewise(context: zmq.asyncio.Context, endpoint: str) -> None:
    metadata = await ask(context, endpoint, HASH, 5.0)
    assert metadata.engine_id == "engine-1"


async def test_another_kind_of_worker_is_refused(context: zmq.asyncio.Context, endpoint: str) -> None:
    others = [
        compatibility_hash("other", 4096, False, "nixl"),
        compatibility_hash("m", 8192, False, "nixl"),
        compatibility_hash("m", 4096, True, "nixl"),
        compatibility_hash("m", 4096, False, "inline"),
    ]
    assert len({HASH, *others}) == 5
    for expected in others:
        with pytest.raises(TransferError, match="not compatible"):
            await ask(context, endpoint, expected, 5.0)


async def test_nobody_answers(context: zmq.asyncio.Context) -> None:
    with pytest.raises(TransferError, match=r"no answer .* in 0\.05 s"):
        await ask(context, "tcp://127.0.0.1:9", HASH, 0.05)


async def test_an_endpoint_that_is_none(context: zmq.asyncio.Context) -> None:
    with pytest.raises(TransferError, match="side channel"):
        await ask(context, "tcp://:", HASH, 0.05)


@pytest.mark.parametrize("garbage", [b"\xc1", msgspec.msgpack.encode("hello"), b""])
async def test_nonsense_is_not_answered_and_does_no_harm(
    context: zmq.asyncio.Context, endpoint: str, garbage: bytes
) -> None:
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    await socket.send_multipart([b"", garbage])
    assert (await ask(context, endpoint, HASH, 5.0)).engine_id == "engine-1"
    assert await socket.poll(0) == 0
    socket.close(linger=0)
