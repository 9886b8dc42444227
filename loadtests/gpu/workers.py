"""The workers: real vLLM processes, or simulated ones to try the scripts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from loadtests.gpu.client import metrics, status
from loadtests.processes import Child, free_ports

MODEL = "m"
START_SECONDS = 200.0
ROOT = Path(__file__).resolve().parents[2]
Role = Literal["prefill", "decode", "aggregated"]


class Seat(msgspec.Struct, frozen=True):
    """One worker to start."""

    name: str
    role: Role
    connector: bool = True
    """Whether it can hand over; a plain worker is the reference for the others."""
    tls: str = ""
    """Its UCX_TLS; empty for UCX's own choice."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how workers are started."""

    python: str
    """Interpreter of the engine."""
    path: str | None
    """Folder with the engine's packages, unless the interpreter has them."""
    model: Path
    """Directory that `weights` wrote."""
    gpus: Sequence[int]
    """Prefill workers are on the first, the others on the last."""
    logs: Path
    kv_bytes: int
    """KV cache of each worker: given, since workers that start side by side cannot measure what is free."""
    flags: Sequence[str] = ()
    env: Mapping[str, str] = {}
    simulated: bool = False


class Worker:
    """One process and its addresses."""

    def __init__(self, seat: Seat, site: Site) -> None:
        self.seat = seat
        self.port, self.events, self.replay, self.side = free_ports(4)
        self.url = f"http://127.0.0.1:{self.port}"
        command, env = (_simulated if site.simulated else _vllm)(self, seat, site)
        self.child = Child(
            seat.name, command, env, ROOT if site.simulated else site.logs, site.logs / f"{seat.name}.log"
        )

    def metrics(self) -> Mapping[str, float]:
        """Its counters, summed over labels."""
        return metrics(self.url)

    def healthy(self) -> bool:
        return status(f"{self.url}/health") == 200

    def block_size(self) -> int:
        """Tokens in a block, as the engine chose it."""
        return int(metrics(self.url, label="block_size")["vllm:cache_config_info"])


@contextmanager
def running(seats: Sequence[Seat], site: Site) -> Iterator[dict[str, Worker]]:
    """Workers by name, all started at once and well; stopped at the end."""
    site.logs.mkdir(parents=True, exist_ok=True)
    workers = {seat.name: Worker(seat, site) for seat in seats}
    began = time.monotonic()
    try:
        for worker in workers.values():
            worker.child.start()
        for worker in workers.values():
            worker.child.wait_ready(worker.healthy, START_SECONDS)
        print(
            json.dumps({"workers": list(workers), "up_seconds": round(time.monotonic() - began, 1)}),
            flush=True,
        )
        yield workers
    finally:
        for worker in workers.values():
            worker.child.stop()


def _vllm(worker: Worker, seat: Seat, site: Site) -> tuple[list[str], dict[str, str]]:
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{worker.events}",
        "replay_endpoint": f"tcp://*:{worker.replay}",
        "topic": "kv-events",
    }
    options: dict[str, object] = {
        "host": "127.0.0.1",
        "port": worker.port,
        "model": site.model,
        "served-model-name": MODEL,
        "load-format": "safetensors",
        "max-model-len": 65_536,
        "max-num-batched-tokens": 16_384,
        "gpu-memory-utilization": 0.2,
        "kv-cache-memory-bytes": site.kv_bytes,
        "kv-events-config": json.dumps(events),
    }
    if seat.connector:
        options["kv-transfer-config"] = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
    command = [site.python, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    env = {
        "CUDA_VISIBLE_DEVICES": str(site.gpus[0 if seat.role == "prefill" else -1]),
        "HF_HUB_OFFLINE": "1",
        "PYTHONHASHSEED": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(worker.side),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    env["PYTHONPATH"] = site.path or ""  # not this process's own: the engine has its own packages
    if seat.tls:
        env["UCX_TLS"] = seat.tls
    return [*command, *site.flags], {**env, **site.env}


def _simulated(worker: Worker, seat: Seat, site: Site) -> tuple[list[str], dict[str, str]]:
    options: dict[str, object] = {
        "name": seat.name,
        "port": worker.port,
        "model": MODEL,
        "tokenizer": site.model / "vocabulary",
        "block-size": 64,
        "kv-groups": "mla+mamba*3" if "hybrid" in site.model.name else "attention",
        "max-model-len": 65_536,
        "role": seat.role,
        "transport": "inline" if seat.connector else "none",
        "kv-events-port": worker.events,
        "kv-replay-port": worker.replay,
        "side-channel-port": worker.side,
        "speedup": 20,
    }
    command = [sys.executable, "-m", "simulator"]
    return [*command, *(part for name, value in options.items() for part in (f"--{name}", str(value)))], {}
