"""The gateway under test, as an operator starts it: the command, real workers, the real vocabulary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from openai import OpenAI

from loadtests.processes import Child, free_ports
from tests.live.worker import answers

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 60.0


class LiveGateway:
    """`kvgateway serve` in its own process, which finds out all but the workers' URLs by itself."""

    def __init__(self, workers: Sequence[str], tokenizer: Path, log_dir: Path) -> None:
        self.port, self.admin_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"
        command = [sys.executable, "-m", "gateway.cli", "serve", "--tokenizer", str(tokenizer)]
        command += ["--port", str(self.port), "--admin-port", str(self.admin_port), "--log-level", "debug"]
        for url in workers:
            command += ["--worker", url]
        self._child = Child("gateway", command, {}, ROOT, log_dir / "gateway.log")

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

    def client(self, timeout: float = 60.0) -> OpenAI:
        """The SDK without its retries: a failure must be seen."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=timeout)
