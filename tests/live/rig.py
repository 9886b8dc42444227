"""Two real workers behind the gateway, and what the tests ask of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from loadtests.processes import wait_until
from tests.live.asker import Asker
from tests.live.gateway import LiveGateway
from tests.live.vocabulary import Vocabulary
from tests.live.worker import LiveWorker

EVENTS_SECONDS = 0.5
"""More than KV events need from a worker into the gateway's index."""
COUNT_SECONDS = 5.0
REJOIN_SECONDS = 60.0


class Rig(Asker):
    """The gateway, its workers and a client."""

    def __init__(self, home: Path, tokenizer: Path, log_dir: Path) -> None:
        self.workers = [LiveWorker(f"worker{number}", home, log_dir) for number in (1, 2)]
        options = [option for worker in self.workers for option in ("--worker", worker.url)]
        self.gateway = LiveGateway(options, tokenizer, log_dir)
        super().__init__(self.gateway.client(), Vocabulary(tokenizer))

    def start(self) -> None:
        """All at once: the gateway finds the workers when they come."""
        for worker in self.workers:
            worker.start()
        self.gateway.start()
        for worker in self.workers:
            worker.wait_ready()
        self.wait_connected()

    @property
    def processes(self) -> tuple[LiveGateway | LiveWorker, ...]:
        return (self.gateway, *self.workers)

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

    def wait_connected(self) -> None:
        """Until the gateway calls both workers ready and follows their KV events."""
        wait_until(
            "the gateway is ready with both workers and their KV events", self._connected, REJOIN_SECONDS
        )

    def _connected(self) -> bool:
        described = self.gateway.workers()
        feeds = [feed["state"] for worker in described for feed in worker["feeds"]]
        return [worker["state"] for worker in described] == ["ready"] * 2 and feeds == ["exact"] * 2

    # watching

    def finished(self) -> list[float]:
        """Requests that each worker finished; for `served_since`."""
        return [worker.finished for worker in self.workers]

    def served_since(self, before: Sequence[float]) -> LiveWorker:
        """The one worker that finished the one request since `before`."""

        def counted() -> bool:
            return sum(self.finished()) >= sum(before) + 1

        wait_until("a worker counts the request", counted, COUNT_SECONDS, every=0.05)
        grown = [w for w, was, now in zip(self.workers, before, self.finished(), strict=True) if now > was]
        assert len(grown) == 1, (before, self.finished())
        return grown[0]

    def settle(self) -> None:
        """Let the KV events of what was served reach the gateway."""
        time.sleep(EVENTS_SECONDS)


def words(count: int, seed: int) -> str:
    """Text of `count` plain words, different for each seed from the first word on."""
    some = ("river", "stone", "paper", "cloud", "engine", "window", "garden", "copper", "silver", "morning")
    return f"Story {seed}:" + "".join(f" {some[(i * i + seed * 7 + i) % len(some)]}{i}" for i in range(count))
