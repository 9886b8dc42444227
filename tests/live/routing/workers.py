"""Pairs of equal workers for the proof, by engine and model, with small caches so that blocks are evicted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.live.conftest import SHARED
from tests.live.sglang.workers import SglangWorker
from tests.live.worker import LiveWorker, request

SHORT = [7, 8, 9]
"""A prompt below one block."""


class ProofWorker(Protocol):
    name: str
    url: str

    def start(self) -> None: ...

    def wait_ready(self) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def tail(self) -> str: ...

    def reset(self) -> None:
        """Empty its prefix cache, and let it say so."""


class VllmProof(LiveWorker):
    """The hybrid model with K3's vocabulary."""

    blocks = 400
    load_format = "safetensors"

    def options(self) -> dict[str, object]:
        return {**super().options(), "load-format": self.load_format}

    def variables(self) -> Mapping[str, str]:
        return {"VLLM_SERVER_DEV_MODE": "1"}

    def reset(self) -> None:
        """vLLM tells of a reset with its next step, so it is given one."""
        assert request(f"{self.url}/reset_prefix_cache", {})[0] == 200
        self.generate(SHORT, 1)


class VllmLfm2(VllmProof):
    load_format = "dummy"

    def options(self) -> dict[str, object]:
        return {**super().options(), "model": str(SHARED / "vllm_cpu/models/lfm2")}


class SglangProof(SglangWorker):
    model = "tiny"
    page = 32

    def __init__(self, name: str, home: Path, log_dir: Path) -> None:
        own = log_dir / name
        own.mkdir()
        super().__init__("aggregated", home, own)
        self.name = name

    def _options(self) -> dict[str, object]:
        return {
            **super()._options(),
            "model-path": str(SHARED / f"sglang_cpu/models/{self.model}"),
            "load-format": "dummy",
            "page-size": self.page,
            "max-total-tokens": 8192,
            "context-length": 4096,
        }

    def reset(self) -> None:
        assert request(f"{self.url}/flush_cache", {})[0] == 200


class SglangLfm2(SglangProof):
    """Hybrid: its pages must be single tokens."""

    model = "lfm2"
    page = 1


ENGINES: dict[str, type[VllmProof] | type[SglangProof]] = {
    "vllm-k3-vocab": VllmProof,
    "vllm-lfm2": VllmLfm2,
    "sglang-tiny": SglangProof,
    "sglang-lfm2": SglangLfm2,
}
