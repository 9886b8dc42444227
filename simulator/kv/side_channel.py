"""vLLM's side channel: a ROUTER that tells a peer what it has to know, and the REQ that asks it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
import zmq
import zmq.asyncio

from simulator.kv.metadata import GET_META, AgentMetadata, Payload
from simulator.kv.transport import TransferError

Other = Callable[[list[bytes]], Awaitable[list[bytes] | None]]
"""Takes a request that is not vLLM's, its frames; gives the answer's, or None for no answer."""


class SideChannel:
    """Answers `get_meta_msg` with the worker's payload and its clock. `other` takes every other request."""

    def __init__(self, context: zmq.asyncio.Context, payload: bytes, other: Other | None = None) -> None:
        self._payload = payload
        self._other = other
        self._socket = context.socket(zmq.ROUTER)
        self._task: asyncio.Task[None] | None = None

    def start(self, host: str, port: int) -> int:
        """Bind and serve; the port. Raises zmq.ZMQError: the port is taken."""
        self._socket.bind(f"tcp://{'*' if host in {'0.0.0.0', '::'} else host}:{port or '*'}")
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        self._task = asyncio.get_running_loop().create_task(self._serve())
        return int(bound.decode().rstrip("\0").rpartition(":")[2])

    async def close(self) -> None:
        """Stop answering."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close(linger=0)

    async def _serve(self) -> None:
        while True:
            identity, *rest = await self._socket.recv_multipart()
            request = rest[1:] if rest and not rest[0] else rest
            answer = await self._answer(request) if request else None
            if answer is not None:
                await self._socket.send_multipart([identity, b"", *answer])

    async def _answer(self, request: list[bytes]) -> list[bytes] | None:
        try:
            message = msgspec.msgpack.decode(request[0])
        except msgspec.DecodeError:
            return None
        if isinstance(message, list) and message[:1] == [GET_META]:
            return [self._payload, msgspec.msgpack.encode(time.perf_counter())]
        return await self._other(request) if self._other else None


async def ask(
    context: zmq.asyncio.Context, endpoint: str, expected_hash: str, seconds: float
) -> AgentMetadata:
    """A peer's metadata. Raises TransferError: nobody answered in time, or the peer is of another kind."""
    socket = context.socket(zmq.REQ)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        socket.connect(endpoint)
        async with asyncio.timeout(seconds):
            await socket.send(msgspec.msgpack.encode((GET_META, 0, 0)))
            payload = msgspec.msgpack.decode((await socket.recv_multipart())[0], type=Payload)
        if payload.compatibility_hash != expected_hash:
            raise TransferError(f"the worker at {endpoint} is not compatible")
        return msgspec.msgpack.decode(payload.agent_metadata_bytes, type=AgentMetadata)
    except TimeoutError:
        raise TransferError(f"no answer from the side channel {endpoint} in {seconds} s") from None
    except (zmq.ZMQError, msgspec.DecodeError) as error:
        raise TransferError(f"side channel {endpoint}: {error}") from None
    finally:
        socket.close(linger=0)
