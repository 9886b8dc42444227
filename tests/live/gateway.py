"""The gateway under test, as an operator starts it: the command, real workers, the real vocabulary."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai import OpenAI

from loadtests.processes import Child, quiet_ports
from tests.live.worker import answers, metric, request

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 60.0


class LiveGateway:
    """`kvgateway serve` in its own process, which finds out all but what `options` tell it by itself."""

    def __init__(self, options: Sequence[str], tokenizer: Path, log_dir: Path, name: str = "gateway") -> None:
        self.port, self.admin_port = quiet_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"
        self.log = log_dir / f"{name}.log"
        command = [sys.executable, "-m", "gateway.cli", "serve", "--tokenizer", str(tokenizer)]
        command += ["--port", str(self.port), "--admin-port", str(self.admin_port), "--log-level", "debug"]
        self._child = Child(name, [*command, *options], {}, ROOT, self.log)

    def __repr__(self) -> str:
        return f"LiveGateway({self.url}, {self._child!r})"

    def start(self) -> None:
        self._child.start()
        self._child.wait_ready(lambda: answers(f"{self.url}/live"), READY_SECONDS)

    def stop(self) -> None:
        self._child.stop()

    @property
    def alive(self) -> bool:
        return self._child.alive

    def tail(self) -> str:
        return self._child.tail()

    def workers(self) -> list[dict[str, Any]]:
        """What its admin port says of its workers."""
        status, answer = request(f"{self.admin_url}/workers")
        assert status == 200, (status, answer)
        workers: list[dict[str, Any]] = json.loads(answer)["workers"]
        return workers

    def metric(self, name: str) -> float:
        """The sum of one metric over its labels, 0 while it has no sample."""
        return metric(self.admin_url, name)

    def client(self, timeout: float = 60.0) -> OpenAI:
        """The SDK without its retries: a failure must be seen."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=timeout)
