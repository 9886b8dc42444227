"""A NIXL agent and the one thread that calls it.

`transfer()` copies inside the call where both ends share a host (64 MiB: some 50 ms) and returns at once
elsewhere; either way it frees the GIL, so the event loop goes on. Failures come as exceptions of NIXL's own,
seldom as the state "ERR".
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from fabric.nixl import Runtime
from simulator.kv.arena import Arena
from simulator.kv.metadata import AgentMetadata
from simulator.kv.transport import Indices, Transfer, TransferError

log = logging.getLogger(__name__)

T = TypeVar("T")

BUSY_SECONDS = 0.0002
"""Between looks at a transfer under way."""
IDLE_SECONDS = 0.002
"""Between looks for notifications."""
TRANSFER_SECONDS = 60.0
"""A READ that takes longer has failed: a silent network says nothing."""
JOIN_SECONDS = 5.0

MEMORY = "DRAM"
HERE = "NIXL_INIT_AGENT"


class RemoteAgent:
    """A peer's name, as NIXL gave it, and its blocks."""

    def __init__(self, name: Any, blocks: Any) -> None:
        self.name = name
        self.blocks = blocks


class _Read:
    def __init__(self, handle: Any, future: Future[Transfer], post_seconds: float, started: float) -> None:
        self.handle = handle
        self.future = future
        self.post_seconds = post_seconds
        self.started = started


class NixlThread:
    """Owns the agent: no other thread touches it. Methods may be called from any thread and give futures."""

    def __init__(
        self, runtime: Runtime, name: str, arena: Arena, on_notification: Callable[[bytes], None]
    ) -> None:
        """`on_notification` is called on the thread."""
        self._api, self._report = runtime
        self._name = name
        self._arena = arena
        self._on_notification = on_notification
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reads: list[_Read] = []
        self._agent: Any = None
        self._registered: Any = None
        self._blocks: Any = None
        self._thread = threading.Thread(target=self._run, name="nixl", daemon=True)

    def start(self) -> Future[bytes]:
        """Make the agent and register the arena; the blob that peers need."""
        self._thread.start()
        return self._call(self._open)

    def connect(self, metadata: AgentMetadata) -> Future[RemoteAgent]:
        """Load a peer's metadata."""
        return self._call(lambda: self._connect(metadata))

    def read(
        self, peer: RemoteAgent, local: Indices, remote: Indices, notification: bytes
    ) -> Future[Transfer]:
        """One READ, each block a descriptor; the peer gets the notification once the bytes are here."""
        future: Future[Transfer] = Future()
        self._jobs.put(lambda: self._post(future, peer, local, remote, notification))
        return future

    def notify(self, peer: RemoteAgent, message: bytes) -> Future[None]:
        """A message without bytes."""
        return self._call(lambda: self._agent.send_notif(peer.name, message))

    def forget(self, peer: RemoteAgent) -> Future[None]:
        """Drop a peer."""
        return self._call(lambda: self._forget(peer))

    def stop(self) -> None:
        """End the thread; what is under way fails. Blocks until it has ended."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(JOIN_SECONDS)

    def _call(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(TransferError(f"NIXL: {type(error).__name__}: {error}"))

        self._jobs.put(job)
        return future

    def _run(self) -> None:
        while self._work():
            self._reads = [read for read in self._reads if not self._ended(read)]
            if self._agent is not None:
                self._take_notifications()
        self._close()

    def _work(self) -> bool:
        """Do what is queued, or wait a little for it; False to stop."""
        timeout = BUSY_SECONDS if self._reads else IDLE_SECONDS
        try:
            job = self._jobs.get(timeout=timeout)
            while job is not None:
                job()
                job = self._jobs.get_nowait()
        except queue.Empty:
            return True
        return False

    def _open(self) -> bytes:
        config = self._api.nixl_agent_config(
            enable_prog_thread=False, backends=["UCX"], capture_telemetry=True
        )
        with self._report.variables():
            agent = self._api.nixl_agent(self._name, config)
        region = (self._arena.address, self._arena.nbytes, 0, "")
        self._registered = agent.register_memory([region], MEMORY)
        self._blocks = agent.prep_xfer_dlist(
            HERE, self._descriptors(self._arena.address, self._arena.num_blocks, 0), MEMORY
        )
        self._agent = agent
        blob: bytes = agent.get_agent_metadata()
        return blob

    def _connect(self, metadata: AgentMetadata) -> RemoteAgent:
        name = self._agent.add_remote_agent(metadata.agent_metadata)
        described = self._descriptors(
            metadata.kv_caches_base_addr[0], metadata.num_blocks, metadata.device_id
        )
        return RemoteAgent(name, self._agent.prep_xfer_dlist(name, described, MEMORY))

    def _descriptors(self, address: int, count: int, device: int) -> Any:
        rows = np.empty((count, 3), dtype=np.uint64)
        rows[:, 0] = np.uint64(address) + np.arange(count, dtype=np.uint64) * np.uint64(
            self._arena.block_bytes
        )
        rows[:, 1] = self._arena.block_bytes
        rows[:, 2] = device
        return rows

    def _post(
        self,
        future: Future[Transfer],
        peer: RemoteAgent,
        local: Indices,
        remote: Indices,
        notification: bytes,
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        handle: Any = None
        try:
            started = time.perf_counter()
            handle = self._agent.make_prepped_xfer(
                "READ", self._blocks, local, peer.blocks, remote, notification
            )
            self._agent.transfer(handle)
            posted = time.perf_counter() - started
        except Exception as error:
            _release(handle)
            future.set_exception(TransferError(f"NIXL: {type(error).__name__}: {error}"))
            return
        self._reads.append(_Read(handle, future, posted, started))

    def _ended(self, read: _Read) -> bool:
        """Look at a READ; when it is over, one way or the other, its handle is released."""
        over = True
        try:
            state = self._agent.check_xfer_state(read.handle)
            seconds = time.perf_counter() - read.started
            over = state != "PROC" or seconds > TRANSFER_SECONDS
            if state == "DONE":
                counts = self._agent.get_xfer_telemetry(read.handle)
                transfer = Transfer(counts.totalBytes, counts.descCount, read.post_seconds, seconds)
                read.future.set_result(transfer)
            elif over:
                read.future.set_exception(TransferError(f"NIXL: READ in state {state} after {seconds:.1f} s"))
        except Exception as error:
            over = True
            read.future.set_exception(TransferError(f"NIXL: {type(error).__name__}: {error}"))
        finally:
            if over:
                _release(read.handle)
        return over

    def _take_notifications(self) -> None:
        try:
            found = self._agent.get_new_notifs()
        except Exception as error:
            log.warning("NIXL gave no notifications: %s", error)
            return
        for messages in found.values():
            for message in messages:
                self._on_notification(message)

    def _forget(self, peer: RemoteAgent) -> None:
        peer.blocks.release()
        self._agent.remove_remote_agent(peer.name)

    def _close(self) -> None:
        for read in self._reads:
            _release(read.handle)
            read.future.set_exception(TransferError("NIXL: stopped"))
        if self._agent is not None:
            self._blocks.release()
            self._agent.deregister_memory(self._registered)
            self._agent = None


def _release(handle: Any) -> None:
    """Give a transfer's handle back. NIXL raises when the transfer is still under way, and aborts it."""
    try:
        if handle is not None:
            handle.release()
    except Exception as error:
        log.warning("NIXL aborts a transfer: %s", error)
