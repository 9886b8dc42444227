"""The memory that a probe moves: of the host, or of a GPU by the CUDA driver, without torch."""

from __future__ import annotations

import ctypes
from typing import Any, Literal, Protocol

import numpy as np

MemoryKind = Literal["dram", "vram", "vram-fabric"]
"""Of the host; of a GPU as cudaMalloc gives it; of a GPU and exportable to other nodes, as MNNVL needs."""

PATTERN_BYTES = 1 << 16


class MemoryUnavailableError(Exception):
    """There is no such memory here; the message says why."""


class Memory(Protocol):
    """A registered buffer."""

    address: int
    nbytes: int
    device: int
    nixl_type: str
    """NIXL's word for it."""

    def fill(self, seed: int) -> None:
        """A pattern that repeats every PATTERN_BYTES; 0 is zeros."""
        ...

    def holds(self, seed: int, offset: int, nbytes: int) -> bool:
        """Whether the pattern is there; `offset` is a multiple of PATTERN_BYTES."""
        ...

    def use(self) -> None:
        """Called on each thread that works with it, before anything else."""
        ...

    def close(self) -> None: ...


def allocate(kind: MemoryKind, nbytes: int, device: int = 0) -> Memory:
    """Raises MemoryUnavailableError."""
    if kind == "dram":
        return HostMemory(nbytes)
    return GpuMemory(nbytes, device, exportable=kind == "vram-fabric")


def pattern(seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if seed == 0:
        return np.zeros(PATTERN_BYTES, np.uint8)
    return np.random.default_rng(seed).integers(0, 256, PATTERN_BYTES, np.uint8)


class HostMemory:
    """Ordinary memory."""

    nixl_type = "DRAM"
    device = 0

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._array = np.zeros(nbytes, np.uint8)
        self.address = int(self._array.ctypes.data)

    def fill(self, seed: int) -> None:
        tile = pattern(seed)
        for start in range(0, self.nbytes, PATTERN_BYTES):
            part = self._array[start : start + PATTERN_BYTES]
            part[:] = tile[: len(part)]

    def holds(self, seed: int, offset: int, nbytes: int) -> bool:
        tile = pattern(seed)
        for start in range(offset, offset + nbytes, PATTERN_BYTES):
            part = self._array[start : min(start + PATTERN_BYTES, offset + nbytes)]
            if not np.array_equal(part, tile[: len(part)]):
                return False
        return True

    def use(self) -> None: ...

    def close(self) -> None:
        self._array = np.zeros(0, np.uint8)


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


PINNED, DEVICE, READ_WRITE, FABRIC_HANDLE = 1, 1, 3, 8


class GpuMemory:
    """A GPU's memory in its primary context, which is the one that UCX and torch use too.

    `exportable` memory is made by the driver's virtual memory calls with a fabric handle: without one, a
    transfer between nodes takes sockets, and nothing says so.
    """

    nixl_type = "VRAM"

    def __init__(self, nbytes: int, device: int, *, exportable: bool = False) -> None:
        self.device = device
        self._cuda = _driver()
        self._exportable = exportable
        gpu = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(gpu), device)
        self._gpu = gpu.value
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._gpu)
        self.use()
        pointer = ctypes.c_uint64()
        if exportable:
            self.nbytes = self._map(nbytes, pointer)
        else:
            self.nbytes = nbytes
            self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        self.address = pointer.value

    def use(self) -> None:
        self._call("cuCtxSetCurrent", self._context)

    def fill(self, seed: int) -> None:
        tile = np.tile(pattern(seed), 256)
        for start in range(0, self.nbytes, len(tile)):
            count = min(len(tile), self.nbytes - start)
            self._call(
                "cuMemcpyHtoD_v2",
                *(ctypes.c_uint64(self.address + start), ctypes.c_void_p(tile.ctypes.data)),
                ctypes.c_size_t(count),
            )
        self._call("cuCtxSynchronize")

    def holds(self, seed: int, offset: int, nbytes: int) -> bool:
        host = HostMemory(nbytes)
        self._call(
            "cuMemcpyDtoH_v2",
            *(ctypes.c_void_p(host.address), ctypes.c_uint64(self.address + offset), ctypes.c_size_t(nbytes)),
        )
        return host.holds(seed, 0, nbytes)

    def close(self) -> None:
        """The process gives it back with its end; what NIXL has registered must not go before that."""

    def _map(self, wanted: int, pointer: ctypes.c_uint64) -> int:
        properties = _Properties(
            type=PINNED, handle_types=FABRIC_HANDLE, location=_Location(DEVICE, self._gpu)
        )
        properties.gpu_direct_rdma_capable = 1
        step = ctypes.c_size_t()
        self._call("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(properties), 0)
        nbytes = -(-wanted // step.value) * step.value
        size, zero = ctypes.c_size_t(nbytes), ctypes.c_uint64(0)
        handle = ctypes.c_uint64()
        self._call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), zero)
        self._call("cuMemAddressReserve", ctypes.byref(pointer), size, ctypes.c_size_t(0), zero, zero)
        self._call("cuMemMap", pointer, size, ctypes.c_size_t(0), handle, zero)
        access = _Access(_Location(DEVICE, self._gpu), READ_WRITE)
        self._call("cuMemSetAccess", pointer, size, ctypes.byref(access), ctypes.c_size_t(1))
        return nbytes

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            said = text.value.decode() if text.value else f"code {code}"
            raise MemoryUnavailableError(f"{name} on GPU {self.device}: {said}")


def _driver() -> Any:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise MemoryUnavailableError(f"there is no CUDA driver here: {error}") from None
    code = cuda.cuInit(0)
    if code:
        raise MemoryUnavailableError(f"the CUDA driver cannot start: code {code}")
    return cuda
