"""A real vLLM worker on this machine's CPU: how it is started, asked directly, and watched."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtests.processes import Child, free_ports

MODEL = "moonshotai/Kimi-K3"
BLOCK = 32
"""Tokens in one KV block of these workers."""
START_SECONDS = 240.0
_HERE = "127.0.0.1"


def request(url: str, body: object = None, timeout: float = 60.0) -> tuple[int, bytes]:
    """One HTTP exchange: GET, or POST of `body` as JSON. An error status is an answer too."""
    data = None if body is None else json.dumps(body).encode()
    message = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(message, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        return request(url, timeout=2.0)[0] == 200
    except OSError:
        return False


class LiveWorker:
    """One vLLM server with its own ports, which it keeps across a restart."""

    def __init__(self, name: str, home: Path, log_dir: Path, scale_out: bool = True) -> None:
        self.name = name
        self.port, self.events_port, self.replay_port = free_ports(3)
        self.url = f"http://{_HERE}:{self.port}"
        self._child = Child(
            name, self._command(home, scale_out), _environment(home), home, log_dir / f"{name}.log"
        )

    def __repr__(self) -> str:
        return f"LiveWorker({self.name}, {self.url}, {self._child!r})"

    def _command(self, home: Path, scale_out: bool) -> list[str]:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
            "topic": "kv-events",
        }
        options = {
            "host": _HERE,
            "port": self.port,
            "model": "models/k3-vocab",
            "served-model-name": MODEL,
            "load-format": "safetensors",
            "dtype": "bfloat16",
            "max-model-len": 8192,
            "max-num-seqs": 8,
            "block-size": BLOCK,
            "num-gpu-blocks-override": 1024,
            "kv-events-config": json.dumps(events),
            "logits-processors": "scripted_lp:Scripted",
        }
        flags = [
            "enforce-eager",
            "enable-prefix-caching",
            "skip-tokenizer-init",
            "enable-prompt-tokens-details",
            "disable-uvicorn-access-log",
        ]
        if scale_out:
            flags.append("enable-scale-out")
        command = [str(home / "venv/bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        return command + [f"--{flag}" for flag in flags]

    def start(self) -> None:
        self._child.start()

    def wait_ready(self) -> None:
        self._child.wait_ready(lambda: answers(f"{self.url}/health"), START_SECONDS)

    def kill(self) -> None:
        self._child.kill()

    def stop(self) -> None:
        self._child.stop()

    def tail(self) -> str:
        return self._child.tail()

    def generate(self, token_ids: Sequence[int], max_tokens: int = 16, **top_level: Any) -> dict[str, Any]:
        """Greedy generation asked of the worker itself, without the gateway."""
        body = {
            "model": MODEL,
            "token_ids": list(token_ids),
            "sampling_params": {"max_tokens": max_tokens, "temperature": 0},
            **top_level,
        }
        status, answer = request(f"{self.url}/inference/v1/generate", body)
        assert status == 200, (status, answer)
        result: dict[str, Any] = json.loads(answer)
        return result

    def metric(self, name: str) -> float:
        """The sum of one metric over its labels, 0 while it has no sample."""
        status, text = request(f"{self.url}/metrics")
        assert status == 200, (status, text)
        lines = [line for line in text.decode().splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    @property
    def finished(self) -> float:
        """Requests that this worker finished since it started."""
        return self.metric("vllm:request_success_total")

    @property
    def running(self) -> float:
        return self.metric("vllm:num_requests_running")

    @property
    def generated(self) -> float:
        return self.metric("vllm:generation_tokens_total")


def _environment(home: Path) -> dict[str, str]:
    """As `shared/vllm_cpu/start_agg.sh` sets it: offline, one thread, repeatable block hashes."""
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "VLLM_HOST_IP": _HERE,
        "PYTHONPATH": str(home / "pylib"),
        "PATH": f"{home / 'venv/bin'}:/usr/bin:/bin",
    }
