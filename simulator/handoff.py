"""What a worker keeps for decode workers, and what it fetches from prefill workers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any
from uuid import uuid4

import numpy as np
import zmq.asyncio

from simulator.faults import Faults
from simulator.kv.arena import Arena
from simulator.kv.inline import InlineTransport
from simulator.kv.leases import Leases
from simulator.kv.metadata import compatibility_hash, describe, pack
from simulator.kv.parameters import BlockGroups, RemoteBlocks, prefill_answer
from simulator.kv.side_channel import SideChannel, ask
from simulator.kv.stats import TransferStats
from simulator.kv.transport import Peer, Transfer, TransferError, Transport
from simulator.nixl.transport import NixlTransport
from simulator.settings import SimulatorSettings

log = logging.getLogger(__name__)
HEARTBEAT = "HB:"


class Handoff:
    """One engine's. Everything happens on the loop; the transport may have threads of its own."""

    def __init__(
        self,
        settings: SimulatorSettings,
        arena: Arena,
        faults: Faults,
        *,
        hybrid: bool = False,
        rank: int | None = None,
    ) -> None:
        """`hybrid` for a model with states; `rank` where there are several. Raises NixlMissingError."""
        self.engine_id = str(uuid4()) if rank is None else f"{uuid4()}_dp{rank}"
        self.leases = Leases(settings.kv_lease_seconds)
        self.stats = TransferStats()
        self.port = 0
        self._settings = settings
        self._arena = arena
        self._faults = faults
        self._hybrid = hybrid
        self._context = zmq.asyncio.Context()
        self.transport = _transport(settings.kv_transport, arena, self._context)
        self._hash = compatibility_hash(settings.model, arena.block_bytes, hybrid, self.transport.label)
        self._channel: SideChannel | None = None
        self._peers: dict[str, Peer] = {}
        self._shaking: dict[str, asyncio.Lock] = {}
        self._watched: dict[str, RemoteBlocks] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        """The side channel's address."""
        return f"tcp://{self._settings.side_channel_host}:{self.port}"

    async def start(self) -> None:
        """Open the side channel. Raises zmq.ZMQError: its port is taken; TransferError: the transport."""
        blob = await self.transport.start(self._notified)
        state_bytes = self._arena.block_bytes if self._hybrid else 0
        payload = pack(self._hash, describe(self.engine_id, blob, self._arena, state_bytes))
        other = self.transport.other if isinstance(self.transport, InlineTransport) else None
        self._channel = SideChannel(self._context, payload, other)
        self.port = self._channel.start(self._settings.side_channel_host, self._settings.side_channel_port)
        self._spawn(self._send_heartbeats())

    async def close(self) -> None:
        """Release what is pinned and let go of the transport."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.leases.close()
        if self._channel is not None:
            await self._channel.close()
        await self.transport.close()
        self._context.destroy(linger=0)

    def answer(
        self, request_id: str, blocks: BlockGroups, num_tokens: int, cached_tokens: int | None
    ) -> dict[str, Any]:
        """Parameters that let a peer read `blocks`."""
        return self._faults.prefill_answer(
            prefill_answer(
                blocks=blocks,
                engine_id=self.engine_id,
                request_id=request_id,
                host=self._settings.side_channel_host,
                port=self.port,
                num_tokens=num_tokens,
                cached_tokens=cached_tokens,
            )
        )

    def watch(self, remote: RemoteBlocks) -> None:
        """Send heartbeats for these blocks from now on."""
        self._watched[remote.request_id] = remote

    def unwatch(self, remote: RemoteBlocks) -> None:
        """No more heartbeats."""
        self._watched.pop(remote.request_id, None)

    async def fetch(self, remote: RemoteBlocks, local: list[int], theirs: list[int]) -> None:
        """Read the peer's blocks `theirs` into `local` and tell it; nothing to read is told as well.

        Raises TransferError.
        """
        try:
            peer = await self._peer(remote)
            if local:
                await self._read(peer, remote, local, theirs)
            else:
                await self.transport.notify(peer, _done(remote))
        except TransferError as error:
            self._forget(remote.engine_id)
            log.warning("transfer of %s failed: %s", remote.request_id, error)
            raise

    def abandon(self, remote: RemoteBlocks) -> None:
        """Tell the peer, in the background, that nobody will read these blocks."""
        self._spawn(self._tell(remote))

    async def _read(self, peer: Peer, remote: RemoteBlocks, local: list[int], theirs: list[int]) -> None:
        nbytes = len(local) * self._arena.block_bytes
        delay = self._faults.link_delay(nbytes)
        await asyncio.sleep(delay)
        done = await self.transport.read(
            peer, np.array(local, dtype=np.int32), np.array(theirs, dtype=np.int32), _done(remote)
        )
        self.stats.moved(Transfer(done.nbytes, done.descriptors, done.post_seconds, done.seconds + delay))

    async def _peer(self, remote: RemoteBlocks) -> Peer:
        async with self._shaking.setdefault(remote.engine_id, asyncio.Lock()):
            if remote.engine_id not in self._peers:
                self._peers[remote.engine_id] = await self._shake_hands(remote)
            return self._peers[remote.engine_id]

    async def _shake_hands(self, remote: RemoteBlocks) -> Peer:
        loop, seconds = asyncio.get_running_loop(), self._settings.handshake_seconds
        deadline = loop.time() + seconds
        metadata = await ask(self._context, remote.endpoint, self._hash, seconds)
        if metadata.engine_id != remote.engine_id:
            # A real engine tries again until its time for a handshake is over.
            await asyncio.sleep(deadline - loop.time())
            raise TransferError(f"{remote.endpoint} is engine {metadata.engine_id}, not {remote.engine_id}")
        self.stats.handshakes += 1
        return await self.transport.connect(remote.endpoint, metadata)

    def _forget(self, engine_id: str) -> None:
        peer = self._peers.pop(engine_id, None)
        if peer is not None:
            self.transport.forget(peer)

    async def _tell(self, remote: RemoteBlocks) -> None:
        try:
            await self.transport.notify(await self._peer(remote), _done(remote))
        except TransferError:
            self.stats.failed_notifications += 1

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.leases.heartbeat_seconds)
            by_engine: dict[str, list[RemoteBlocks]] = {}
            for remote in self._watched.values():
                by_engine.setdefault(remote.engine_id, []).append(remote)
            for remotes in by_engine.values():
                if not self._faults.settings.drop_heartbeats:
                    self._spawn(self._send_heartbeat(remotes))

    async def _send_heartbeat(self, remotes: list[RemoteBlocks]) -> None:
        message = HEARTBEAT + ",".join(remote.request_id for remote in remotes)
        with suppress(TransferError):
            await self.transport.notify(await self._peer(remotes[0]), message.encode())

    def _notified(self, message: bytes) -> None:
        text = message.decode("utf-8", "replace")
        if text.startswith(HEARTBEAT):
            if not self._faults.settings.drop_heartbeats:
                self.leases.heartbeat(text.removeprefix(HEARTBEAT).split(","))
            return
        request_id, _, consumers = text.rpartition(":")
        self.leases.notified(request_id, int(consumers) if consumers.isdigit() else 1)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _done(remote: RemoteBlocks) -> bytes:
    return f"{remote.request_id}:1".encode()


def _transport(name: str, arena: Arena, context: zmq.asyncio.Context) -> Transport:
    return NixlTransport(arena) if name == "nixl" else InlineTransport(arena, context)
