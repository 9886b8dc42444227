"""A NIXL agent with one buffer, and the one thread that calls it.

Calls block (on one host `transfer` copies before it returns), so they never run on an event loop. A peer that
dies fails a transfer within a moment; one that is frozen or cut off says nothing, so every transfer has a
deadline.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from fabric.memory import Memory
from fabric.nixl import Runtime
from fabric.results import Timing

T = TypeVar("T")

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 1 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
"""Of contiguous transfers; what does not fit in both buffers is left out."""
PIECE = 64 * KIB
PIECES = (16, 1024)
"""Of scattered transfers: every other piece of the buffers."""
REPEATS = 5
ENOUGH_SECONDS = 1.0
"""For one shape, however few repeats that was."""
SEED = 7
HERE = "NIXL_INIT_AGENT"


class ProbeError(Exception):
    """A measurement failed; the message says how."""


class Hello(msgspec.Struct, frozen=True):
    """What a peer must know to read an agent's buffer."""

    name: str
    agent: bytes
    """NIXL's metadata."""
    address: int
    nbytes: int
    device: int
    nixl_type: str


class Shape(NamedTuple):
    pieces: int
    piece_bytes: int

    @property
    def stride(self) -> int:
        return self.piece_bytes if self.pieces == 1 else 2 * self.piece_bytes

    @property
    def span(self) -> int:
        return self.pieces * self.stride


class Agent:
    """Owns the NIXL agent. Methods are coroutines; the work is done on a thread of its own."""

    def __init__(self, runtime: Runtime, name: str, memory: Memory, transfer_seconds: float) -> None:
        """`transfer_seconds` bounds each transfer."""
        self._runtime = runtime
        self._name = name
        self._memory = memory
        self._transfer_seconds = transfer_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nixl")
        self._agent: Any = None

    async def open(self) -> Hello:
        """Register the buffer. Raises ProbeError."""
        return await self._run(self._open)

    async def measure(self, peer: Hello) -> tuple[str, list[Timing]]:
        """Read from a peer in every shape; what carried the bytes, and the times. Raises ProbeError."""
        return await self._run(lambda: self._measure(peer))

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, function: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        except ProbeError:
            raise
        except Exception as error:
            raise ProbeError(f"NIXL: {type(error).__name__}: {error}") from error

    def _open(self) -> Hello:
        memory, api = self._memory, self._runtime.api
        memory.use()
        memory.fill(SEED)
        # The peer reads while this process does nothing: something must answer where that is not hardware.
        config = api.nixl_agent_config(enable_prog_thread=True, backends=["UCX"], capture_telemetry=True)
        with self._runtime.report.variables():
            self._agent = api.nixl_agent(self._name, config)
        self._agent.register_memory([(memory.address, memory.nbytes, memory.device, "")], memory.nixl_type)
        blob: bytes = self._agent.get_agent_metadata()
        return Hello(self._name, blob, memory.address, memory.nbytes, memory.device, memory.nixl_type)

    def _measure(self, peer: Hello) -> tuple[str, list[Timing]]:
        remote = self._agent.add_remote_agent(peer.agent)
        try:
            fitting = shapes(min(self._memory.nbytes, peer.nbytes))
            timings = [self._time(remote, peer, shape) for shape in fitting]
            return self._runtime.report.read_path(), timings
        finally:
            self._forget(remote)

    def _time(self, remote: Any, peer: Hello, shape: Shape) -> Timing:
        memory, agent = self._memory, self._agent
        local = agent.get_xfer_descs(_rows(memory.address, memory.device, shape), memory.nixl_type)
        far = agent.get_xfer_descs(_rows(peer.address, peer.device, shape), peer.nixl_type)
        memory.fill(0)
        handle = agent.initialize_xfer("READ", local, far, remote)
        try:
            self._read(handle)  # sets the connection up
            last = (shape.pieces - 1) * shape.stride
            if not all(memory.holds(SEED, at, shape.piece_bytes) for at in {0, last}):
                raise ProbeError("a transfer that succeeded brought other bytes")
            seconds: list[float] = []
            while len(seconds) < REPEATS and (sum(seconds) < ENOUGH_SECONDS or not seconds):
                seconds.append(self._read(handle))
        finally:
            handle.release()
        return Timing(pieces=shape.pieces, piece_bytes=shape.piece_bytes, seconds=statistics.median(seconds))

    def _read(self, handle: Any) -> float:
        started = time.perf_counter()
        state = self._agent.transfer(handle)
        while state == "PROC":
            if time.perf_counter() - started > self._transfer_seconds:
                raise ProbeError(f"a transfer takes longer than {self._transfer_seconds:g} s")
            state = self._agent.check_xfer_state(handle)
        if state != "DONE":
            raise ProbeError(f"a transfer ended in state {state}")
        return time.perf_counter() - started

    def _forget(self, remote: Any) -> None:
        try:
            self._agent.remove_remote_agent(remote)
        except Exception as error:
            raise ProbeError(f"NIXL: {type(error).__name__}: {error}") from error


def shapes(nbytes: int) -> Iterator[Shape]:
    """What fits in buffers of that size, smallest first."""
    for shape in (*(Shape(1, size) for size in SIZES), *(Shape(count, PIECE) for count in PIECES)):
        if shape.span <= nbytes:
            yield shape


def _rows(address: int, device: int, shape: Shape) -> Any:
    rows = np.empty((shape.pieces, 3), dtype=np.uint64)
    rows[:, 0] = np.uint64(address) + np.arange(shape.pieces, dtype=np.uint64) * np.uint64(shape.stride)
    rows[:, 1] = shape.piece_bytes
    rows[:, 2] = device
    return rows
