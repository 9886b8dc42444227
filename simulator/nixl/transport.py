"""`Transport` over NIXL."""

from __future__ import annotations

import asyncio
import os
from uuid import uuid4

from fabric.nixl import load
from simulator.kv.arena import Arena
from simulator.kv.metadata import AgentMetadata
from simulator.kv.transport import Indices, OnNotification, Peer, Transfer, TransferError
from simulator.nixl.agent import NixlThread


class NixlTransport:
    """See `Transport`. Raises NixlMissingError."""

    label = "nixl"

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._runtime = load()
        self._thread: NixlThread | None = None

    def describe(self) -> str:
        """What UCX says about its reads."""
        return f"nixl: {self._runtime.report.read_path()}"

    async def start(self, on_notification: OnNotification) -> bytes:
        """Start the thread. Raises TransferError."""
        loop = asyncio.get_running_loop()
        self._thread = NixlThread(
            self._runtime,
            str(uuid4()),
            self._arena,
            lambda message: _later(loop, on_notification, message),
        )
        try:
            return await asyncio.wrap_future(self._thread.start())
        except TransferError as error:
            allowed = os.environ.get("UCX_TLS")
            if allowed is None:
                raise
            # NIXL wants to hear of peers that fail, and among the transports of one host only tcp tells it.
            raise TransferError(f"{error} (UCX_TLS={allowed} has to allow tcp)") from None

    async def connect(self, endpoint: str, metadata: AgentMetadata) -> Peer:
        """Raises TransferError."""
        remote = await asyncio.wrap_future(self._running.connect(metadata))
        return Peer(metadata.engine_id, endpoint, metadata, remote)

    async def read(self, peer: Peer, local: Indices, remote: Indices, notification: bytes) -> Transfer:
        """Raises TransferError."""
        return await asyncio.shield(
            asyncio.wrap_future(self._running.read(peer.handle, local, remote, notification))
        )

    async def notify(self, peer: Peer, message: bytes) -> None:
        """Raises TransferError."""
        await asyncio.wrap_future(self._running.notify(peer.handle, message))

    def forget(self, peer: Peer) -> None:
        """Drop it in the background."""
        self._running.forget(peer.handle)

    async def close(self) -> None:
        """Stop the thread."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.stop)

    @property
    def _running(self) -> NixlThread:
        assert self._thread is not None
        return self._thread


def _later(loop: asyncio.AbstractEventLoop, function: OnNotification, message: bytes) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, message)
