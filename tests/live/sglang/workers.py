"""A real SGLang worker on this machine's CPU: how it is started, asked directly, and watched."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from loadtests.processes import Child, quiet_ports
from tests.live.worker import BLOCK, HERE, MANNERS, MODEL, START_SECONDS, answers, request

Role = Literal["aggregated", "prefill", "decode"]
STARTUP = Path(__file__).parent / "startup"


class SglangWorker:
    """One server with its own ports, which it keeps across a restart."""

    def __init__(self, role: Role, home: Path, log_dir: Path) -> None:
        self.name = role
        self.role = role
        self.port, self.events_port, self.replay_port, self.bootstrap_port = quiet_ports(4)
        self.url = f"http://{HERE}:{self.port}"
        self.log = log_dir / f"sglang-{role}.log"
        command = [str(home / "venv/bin/python"), "-m", "sglang.launch_server"]
        for option, value in self._options().items():
            command += [f"--{option}", *([str(value)] if value is not None else [])]
        self._child = Child(f"sglang-{role}", command, _environment(home), home, self.log)

    def __repr__(self) -> str:
        return f"SglangWorker({self.role}, {self.url}, {self._child!r})"

    def _options(self) -> dict[str, object]:
        """Its command line; None for an option without a value."""
        events = {
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
            "topic": "kv-events",
        }
        options: dict[str, object] = {
            "host": HERE,
            "port": self.port,
            "model-path": "models/k3-vocab-attn",
            "served-model-name": MODEL,
            "load-format": "safetensors",
            "device": "cpu",
            "attention-backend": "torch_native",
            "sampling-backend": "pytorch",
            "grammar-backend": "none",
            "context-length": 8192,
            "max-total-tokens": 16384,
            "max-running-requests": 8,
            "page-size": BLOCK,
            "mem-fraction-static": 0.2,
            "kv-events-config": json.dumps(events),
            "skip-tokenizer-init": None,
            "skip-server-warmup": None,
            "sleep-on-idle": None,
            "enable-metrics": None,
            "enable-cache-report": None,
        }
        if self.role != "aggregated":
            options["disaggregation-mode"] = self.role
            options["disaggregation-transfer-backend"] = "nixl"
            options["disaggregation-bootstrap-port"] = self.bootstrap_port
        if self.role == "decode":
            options["disaggregation-decode-retraction-backup"] = "cpu_tensor"
        return options

    def start(self) -> None:
        self._child.start()

    def wait_ready(self) -> None:
        self._child.wait_ready(lambda: answers(f"{self.url}/health"), START_SECONDS)

    @property
    def alive(self) -> bool:
        return self._child.alive

    def kill(self) -> None:
        self._child.kill()

    def stop(self) -> None:
        self._child.stop()

    def tail(self) -> str:
        return self._child.tail()

    def greedy(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Greedy ids, with nothing in the worker's cache that belongs to the prompt."""
        body = {
            "input_ids": list(token_ids),
            "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0},
            "cache_salt": uuid.uuid4().hex,
        }
        status, answer = request(f"{self.url}/generate", body)
        assert status == 200, (status, answer)
        ids: list[int] = json.loads(answer)["output_ids"]
        return ids

    def load(self) -> dict[str, Any]:
        """What it says that it is busy with."""
        status, answer = request(f"{self.url}/v1/loads")
        assert status == 200, (status, answer)
        load: dict[str, Any] = json.loads(answer)["loads"][0]
        return load

    @property
    def busy(self) -> int:
        """Requests anywhere in it."""
        load = self.load()
        queues = load["disaggregation"]
        waiting = sum(value for name, value in queues.items() if name.endswith("_reqs"))
        return int(load["num_running_reqs"] + load["num_waiting_reqs"] + waiting)


def _environment(home: Path) -> dict[str, str]:
    """As `shared/sglang_cpu/start.sh` sets it: no GPU, offline, one thread, NIXL in host memory."""
    pylib = home / "pylib"
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        "NIXL_CPU_DRAM": "1",
        "UCX_TLS": "tcp,self,sysv,posix,cma",
        "PYTHONDONTWRITEBYTECODE": "",  # what is compiled once is there for the next start
        "STARTUP_FILES": f"{pylib / 'sitecustomize.py'}:{MANNERS / 'sitecustomize.py'}",
        "PYTHONPATH": f"{STARTUP}:{pylib}",
        "PATH": f"{home / 'venv/bin'}:/usr/bin:/bin",
    }
