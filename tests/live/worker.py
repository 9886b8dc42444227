"""A real vLLM worker on this machine's CPU: how it is started, asked directly, and watched."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.processes import Child, quiet_ports

MODEL = "moonshotai/Kimi-K3"
BLOCK = 32
"""Tokens in one KV block of these workers."""
START_SECONDS = 420.0
HERE = "127.0.0.1"
MANNERS = Path(__file__).parent / "manners"


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


def metric(url: str, name: str) -> float:
    """The sum of one metric over its labels, 0 while it has no sample."""
    status, text = request(f"{url}/metrics")
    assert status == 200, (status, text)
    lines = [line for line in text.decode().splitlines() if line.split("{")[0].split(" ")[0] == name]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


class LiveWorker:
    """One vLLM server with its own ports, which it keeps across a restart."""

    model = "k3-vocab"
    blocks = 1024
    """KV blocks that it has."""

    def __init__(self, name: str, home: Path, log_dir: Path) -> None:
        self.name = name
        self.port, self.events_port, self.replay_port = quiet_ports(3)
        self.url = f"http://{HERE}:{self.port}"
        self.log = log_dir / f"{name}.log"
        command = [str(home / "venv/bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
        for option, value in self.options().items():
            command += [f"--{option}", *([str(value)] if value is not None else [])]
        self._child = Child(name, command, {**_environment(home), **self.variables()}, home, self.log)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.url}, {self._child!r})"

    def options(self) -> dict[str, object]:
        """Its command line; None for an option without a value."""
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
            "topic": "kv-events",
        }
        return {
            "host": HERE,
            "port": self.port,
            "model": f"models/{self.model}",
            "served-model-name": MODEL,
            "load-format": "safetensors",
            "dtype": "bfloat16",
            "max-model-len": 8192,
            "max-num-seqs": 8,
            "block-size": BLOCK,
            "num-gpu-blocks-override": self.blocks,
            "kv-events-config": json.dumps(events),
            "logits-processors": "scripted_lp:Scripted",
            "enforce-eager": None,
            "enable-prefix-caching": None,
            "skip-tokenizer-init": None,
            "enable-prompt-tokens-details": None,
            "disable-uvicorn-access-log": None,
            "enable-scale-out": None,
        }

    def variables(self) -> Mapping[str, str]:
        """What it needs in its environment beside what all need."""
        return {}

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
        status, answer = self.try_generate(token_ids, max_tokens, **top_level)
        assert status == 200, (status, answer)
        result: dict[str, Any] = json.loads(answer)
        return result

    def try_generate(
        self, token_ids: Sequence[int], max_tokens: int = 16, **top_level: Any
    ) -> tuple[int, bytes]:
        """The same, with status and body as they came."""
        body = {
            "model": MODEL,
            "token_ids": list(token_ids),
            "sampling_params": {"max_tokens": max_tokens, "temperature": 0},
            **top_level,
        }
        return request(f"{self.url}/inference/v1/generate", body)

    def greedy(self, token_ids: Sequence[int], max_tokens: int = 16, **top_level: Any) -> list[int]:
        """Greedy ids, with nothing in the worker's cache that belongs to the prompt."""
        top_level = {"cache_salt": uuid.uuid4().hex, **top_level}
        ids: list[int] = self.generate(token_ids, max_tokens, **top_level)["choices"][0]["token_ids"]
        return ids

    def metric(self, name: str) -> float:
        """The sum of one metric over its labels, 0 while it has no sample."""
        return metric(self.url, name)

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
        "PYTHONDONTWRITEBYTECODE": "",  # what is compiled once is there for the next start
        "VLLM_HOST_IP": HERE,
        "PYTHONPATH": f"{MANNERS}:{home / 'pylib'}",
        "PATH": f"{home / 'venv/bin'}:/usr/bin:/bin",
    }
