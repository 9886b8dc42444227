"""vLLM's NIXL side channel, asked as a decode worker asks it: who are you, and what must fit.

The answer comes from the prefill worker's scheduler process, one MessagePack map inside another; an unknown
layout of the inner one is no failure, since only its hash must be understood to compare two workers.
"""

from __future__ import annotations

import asyncio

import msgspec
import zmq
import zmq.asyncio

SECONDS = 5.0
GET_META = b"get_meta_msg"


class SideChannelError(Exception):
    """Nobody answered, or not as a side channel does."""


class Shaken(msgspec.Struct, frozen=True):
    """What a handshake told."""

    compatibility: str
    engine_id: str | None = None
    block_size: int | None = None
    num_blocks: int | None = None


class _Payload(msgspec.Struct):
    compatibility_hash: str
    agent_metadata_bytes: bytes


class _Metadata(msgspec.Struct):
    engine_id: str | None = None
    block_size: int | None = None
    num_blocks: int | None = None


async def shake(address: str, seconds: float = SECONDS) -> Shaken:
    """Ask HOST:PORT. Raises SideChannelError."""
    socket = zmq.asyncio.Context.instance().socket(zmq.REQ)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        async with asyncio.timeout(seconds):
            socket.connect(f"tcp://{address}")
            await socket.send(msgspec.msgpack.encode((GET_META, 0, 0)))
            frames = await socket.recv_multipart()
        payload = msgspec.msgpack.decode(frames[0], type=_Payload)
    except TimeoutError:
        raise SideChannelError(f"nobody answers at {address} within {seconds:g} s") from None
    except (zmq.ZMQError, msgspec.DecodeError) as error:
        raise SideChannelError(f"{address}: {error}") from None
    finally:
        socket.close(linger=0)
    try:
        metadata = msgspec.msgpack.decode(payload.agent_metadata_bytes, type=_Metadata)
    except msgspec.DecodeError:
        metadata = _Metadata()
    return Shaken(payload.compatibility_hash, metadata.engine_id, metadata.block_size, metadata.num_blocks)
