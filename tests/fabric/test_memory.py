"""Buffers of a probe."""

from __future__ import annotations

import ctypes

import pytest

from fabric import memory
from fabric.memory import PATTERN_BYTES, MemoryKind, MemoryUnavailableError, allocate


def test_a_pattern_that_was_written_is_found_and_another_is_not() -> None:
    buffer = allocate("dram", 3 * PATTERN_BYTES + 100)
    assert buffer.holds(0, 0, buffer.nbytes)
    buffer.fill(7)
    assert buffer.holds(7, 0, buffer.nbytes)
    assert buffer.holds(7, 2 * PATTERN_BYTES, 50)
    assert not buffer.holds(8, 0, buffer.nbytes)
    ctypes.memset(buffer.address + PATTERN_BYTES + 1, 0, 200)
    assert not buffer.holds(7, PATTERN_BYTES, 1000)
    assert buffer.holds(7, 0, PATTERN_BYTES)


@pytest.mark.parametrize("kind", ["vram", "vram-fabric"])
def test_without_a_gpu_vram_says_so(kind: MemoryKind, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(memory.ctypes, "CDLL", absent)
    with pytest.raises(MemoryUnavailableError, match="no CUDA driver"):
        allocate(kind, 1 << 20)


class _Driver:
    """The CUDA driver as far as a probe calls it, with host memory for a GPU's."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.kept: list[object] = []
        self.failing = ""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: object) -> int:
            self.calls.append(name)
            if name == self.failing:
                return 2
            action = getattr(self, f"_{name}", None)
            if action is not None:
                action(*arguments)
            return 0

        return call

    def _cuMemAlloc_v2(self, pointer: object, size: ctypes.c_size_t) -> None:  # noqa: N802
        self.kept.append(ctypes.create_string_buffer(size.value))
        pointer._obj.value = ctypes.addressof(self.kept[-1])  # type: ignore[attr-defined,arg-type]

    def _cuMemGetAllocationGranularity(self, step: object, *_: object) -> None:  # noqa: N802
        step._obj.value = 1 << 21  # type: ignore[attr-defined]

    def _cuMemAddressReserve(self, pointer: object, size: ctypes.c_size_t, *_: object) -> None:  # noqa: N802
        self._cuMemAlloc_v2(pointer, size)

    def _cuMemCreate(self, handle: object, size: object, properties: object, flags: object) -> None:  # noqa: N802
        self.properties = properties._obj  # type: ignore[attr-defined]

    def _cuMemcpyHtoD_v2(self, to: ctypes.c_uint64, source: ctypes.c_void_p, size: ctypes.c_size_t) -> None:  # noqa: N802
        ctypes.memmove(to.value, source.value or 0, size.value)

    def _cuMemcpyDtoH_v2(self, to: ctypes.c_void_p, source: ctypes.c_uint64, size: ctypes.c_size_t) -> None:  # noqa: N802
        ctypes.memmove(to.value or 0, source.value, size.value)

    def _cuGetErrorString(self, code: int, text: object) -> None:  # noqa: N802
        text._obj.value = b"out of memory"  # type: ignore[attr-defined]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    made = _Driver()
    monkeypatch.setattr(memory, "_driver", lambda: made)
    return made


def test_a_gpus_memory_is_filled_and_checked_by_the_driver(driver: _Driver) -> None:
    buffer = allocate("vram", 3 * PATTERN_BYTES, 1)
    buffer.fill(7)
    assert buffer.holds(7, PATTERN_BYTES, PATTERN_BYTES)
    assert not buffer.holds(8, 0, PATTERN_BYTES)
    assert (buffer.nixl_type, buffer.device) == ("VRAM", 1)
    assert driver.calls[:3] == ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]


def test_memory_for_other_nodes_has_a_fabric_handle_and_whole_pages(driver: _Driver) -> None:
    buffer = allocate("vram-fabric", 3 << 20)
    assert buffer.nbytes == 4 << 20
    assert driver.properties.handle_types == 8
    assert driver.calls[-1] == "cuMemSetAccess"
    buffer.fill(7)
    assert buffer.holds(7, 0, PATTERN_BYTES)


def test_what_the_driver_refuses_is_said_in_its_words(driver: _Driver) -> None:
    driver.failing = "cuMemAlloc_v2"
    with pytest.raises(MemoryUnavailableError, match="cuMemAlloc_v2 on GPU 0: out of memory"):
        allocate("vram", 1 << 20)
