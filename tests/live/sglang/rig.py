"""An aggregated SGLang worker and a pair of them, each behind a gateway of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtests.processes import wait_until
from tests.live.asker import Asker
from tests.live.gateway import LiveGateway
from tests.live.sglang.workers import SglangWorker
from tests.live.vocabulary import Vocabulary

REJOIN_SECONDS = 60.0


class SglangFront(Asker):
    """One gateway with its workers and a client."""

    def __init__(
        self, name: str, workers: Sequence[SglangWorker], tokenizer: Path, log_dir: Path, policy: str = "kv"
    ) -> None:
        self.config = config = log_dir / f"{name}.toml"
        lines = [f'policy = "{policy}"']
        for worker in workers:
            lines += ["[[workers]]", f'name = "{worker.name}"', f'url = "{worker.url}"']
        config.write_text("\n".join(lines) + "\n")
        self.gateway = LiveGateway(["--config", str(config)], tokenizer, log_dir, f"{name}-gateway")
        self._workers = workers
        super().__init__(self.gateway.client(), Vocabulary(tokenizer))

    def described(self) -> dict[str, dict[str, Any]]:
        """What the gateway says of each worker."""
        return {worker["name"]: worker for worker in self.gateway.workers()}

    def wait_connected(self) -> None:
        """Until all workers are ready and those that publish KV events are followed."""
        wait_until(f"{self.gateway!r} has its workers", self._connected, REJOIN_SECONDS)

    def _connected(self) -> bool:
        described = self.gateway.workers()
        feeds = [feed["state"] for worker in described for feed in worker["feeds"]]
        publishing = [worker for worker in self._workers if worker.role != "decode"]
        return all(each["state"] == "ready" for each in described) and feeds == ["exact"] * len(publishing)


class SglangRig:
    """All of it. Roles are left out of the configuration: SGLang tells them itself."""

    def __init__(self, home: Path, tokenizer: Path, log_dir: Path) -> None:
        self.aggregated = SglangWorker("aggregated", home, log_dir)
        self.prefill = SglangWorker("prefill", home, log_dir)
        self.decode = SglangWorker("decode", home, log_dir)
        self.plain = SglangFront("plain", [self.aggregated], tokenizer, log_dir)
        self.pair = SglangFront("pair", [self.prefill, self.decode], tokenizer, log_dir)
        self.vocabulary = self.pair.vocabulary

    @property
    def workers(self) -> tuple[SglangWorker, ...]:
        return (self.aggregated, self.prefill, self.decode)

    @property
    def processes(self) -> tuple[LiveGateway | SglangWorker, ...]:
        return (self.plain.gateway, self.pair.gateway, *self.workers)

    def start(self) -> None:
        """All at once: the gateways find the workers when they come."""
        for process in self.processes:
            process.start()
        for worker in self.workers:
            worker.wait_ready()
        for front in (self.plain, self.pair):
            front.wait_connected()

    def stop(self) -> None:
        for process in self.processes:
            process.stop()
