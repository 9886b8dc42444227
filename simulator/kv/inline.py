"""The stand-in for NIXL where that is not installed: blocks copied in messages over the side channel.

It moves the same bytes to the same places, through both workers' loops and a TCP connection. Its speed says
nothing about NIXL.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from simulator.kv.arena import Arena
from simulator.kv.metadata import AgentMetadata
from simulator.kv.transport import Indices, OnNotification, Peer, Transfer, TransferError

READ = b"sim_read"
NOTIFY = b"sim_notify"
MESSAGE_BYTES = 1 << 20
SECONDS = 3.0
"""Without an answer to one message a peer counts as gone."""


class InlineTransport:
    """See `Transport`. `other` has to be given to the worker's own side channel."""

    label = "inline"

    def __init__(self, arena: Arena, context: zmq.asyncio.Context) -> None:
        self._arena = arena
        self._context = context
        self._on_notification: OnNotification | None = None
        self._links: dict[str, tuple[zmq.asyncio.Socket, asyncio.Lock]] = {}

    def describe(self) -> str:
        """Where the bytes go."""
        return "inline: copied over ZeroMQ"

    async def start(self, on_notification: OnNotification) -> bytes:
        """Nothing to register."""
        self._on_notification = on_notification
        return b"inline"

    async def connect(self, endpoint: str, metadata: AgentMetadata) -> Peer:
        """Open a connection; whether somebody is there shows at the first read."""
        socket = self._context.socket(zmq.DEALER)
        socket.connect(endpoint)
        self._links[metadata.engine_id] = (socket, asyncio.Lock())
        return Peer(metadata.engine_id, endpoint, metadata, None)

    async def read(self, peer: Peer, local: Indices, remote: Indices, notification: bytes) -> Transfer:
        """Ask for the blocks message by message. Raises TransferError."""
        started = time.perf_counter()
        count = max(1, MESSAGE_BYTES // self._arena.block_bytes)
        socket, lock = self._link(peer)
        async with lock:
            for first in range(0, len(local), count):
                piece = await self._ask(peer, socket, remote[first : first + count])
                here = local[first : first + count]
                self._arena.blocks[here] = piece.reshape(len(here), -1)
            await self._send(peer, socket, NOTIFY, notification)
        nbytes = len(local) * self._arena.block_bytes
        return Transfer(nbytes, len(local), 0.0, time.perf_counter() - started)

    async def notify(self, peer: Peer, message: bytes) -> None:
        """Raises TransferError."""
        await self._send(peer, self._link(peer)[0], NOTIFY, message)

    def forget(self, peer: Peer) -> None:
        """Close the connection."""
        link = self._links.pop(peer.engine_id, None)
        if link is not None:
            link[0].close(linger=0)

    async def close(self) -> None:
        """Close every connection."""
        for socket, _ in self._links.values():
            socket.close(linger=0)

    async def other(self, request: list[bytes]) -> list[bytes] | None:
        """A peer's request on this worker's side channel."""
        (kind,), content = msgspec.msgpack.decode(request[0]), request[1]
        if kind == READ:
            return [self._arena.blocks[np.frombuffer(content, dtype=np.int32)].tobytes()]
        if kind == NOTIFY and self._on_notification is not None:
            self._on_notification(content)
        return None

    def _link(self, peer: Peer) -> tuple[zmq.asyncio.Socket, asyncio.Lock]:
        try:
            return self._links[peer.engine_id]
        except KeyError:
            raise TransferError(f"no connection to {peer.endpoint}") from None

    async def _ask(
        self, peer: Peer, socket: zmq.asyncio.Socket, remote: Indices
    ) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        await self._send(peer, socket, READ, remote.tobytes())
        try:
            async with asyncio.timeout(SECONDS):
                content = (await socket.recv_multipart())[-1]
        except (TimeoutError, zmq.ZMQError):
            raise TransferError(f"{peer.endpoint} does not answer") from None
        return np.frombuffer(content, dtype=np.uint64)

    @staticmethod
    async def _send(peer: Peer, socket: zmq.asyncio.Socket, kind: bytes, content: bytes) -> None:
        """A peer that is gone takes nothing. Raises TransferError."""
        try:
            async with asyncio.timeout(SECONDS):
                await socket.send_multipart([b"", msgspec.msgpack.encode((kind,)), content])
        except (TimeoutError, zmq.ZMQError):
            raise TransferError(f"{peer.endpoint} takes no messages") from None
