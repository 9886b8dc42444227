"""Two equal workers behind a gateway, and the two runs of the proof against them."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtests.processes import wait_until
from loadtests.proof.drive import Driver
from loadtests.proof.mix import Mix
from loadtests.proof.score import Outcome
from tests.live.conftest import SETUP_SECONDS, SHARED
from tests.live.gateway import ROOT, LiveGateway
from tests.live.routing.workers import ENGINES, ProofWorker, VllmProof
from tests.live.worker import MODEL

REJOIN_SECONDS = 90.0
QUIET_SECONDS = 0.1
"""Without a further batch of events: all is told of what was served."""
THINK_SECONDS = 0.8
SEED = 11


class Run(msgspec.Struct):
    """What one run gave."""

    outcomes: list[Outcome]
    failed: list[str]
    down: dict[str, list[tuple[float, float]]] = {}
    """By worker: from when to when it was not there."""


class RoutingRig:
    """One engine and model, twice, and the gateway."""

    def __init__(self, engine: str, log_dir: Path) -> None:
        kind = ENGINES[engine]
        home = made("live_setup.sh" if issubclass(kind, VllmProof) else "sglang_setup.sh")
        self.workers: list[ProofWorker] = [kind(name, home, log_dir) for name in ("one", "two")]
        config = log_dir / "workers.toml"
        lines = [f'[[workers]]\nname = "{worker.name}"\nurl = "{worker.url}"\n' for worker in self.workers]
        config.write_text("".join(lines))
        options = ["--config", str(config)]
        self.gateway = LiveGateway(options, SHARED / "data/kimi_k3_tokenizer", log_dir)
        self.driver = Driver(self.gateway.url, self.gateway.admin_url, MODEL, self.gateway.log)

    @property
    def processes(self) -> Sequence[LiveGateway | ProofWorker]:
        return (self.gateway, *self.workers)

    def start(self) -> None:
        for worker in self.workers:
            worker.start()
        self.gateway.start()
        for worker in self.workers:
            worker.wait_ready()
        self.wait_connected()

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

    def wait_connected(self) -> None:
        wait_until("both workers are ready and their events followed", self._connected, REJOIN_SECONDS)

    def _connected(self) -> bool:
        described = self.gateway.workers()
        feeds = [feed["state"] for worker in described for feed in worker["feeds"]]
        return [worker["state"] for worker in described] == ["ready"] * 2 and feeds == ["exact"] * 2

    def settle(self) -> None:
        """Until no worker's events have come for a moment."""
        before, since = -1, time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            batches = sum(feed["batches"] for worker in self.gateway.workers() for feed in worker["feeds"])
            if batches != before:
                before, since = batches, time.monotonic()
            time.sleep(0.02)

    def sequential(self, count: int, restart: bool = True) -> Run:
        """One request after another; a cache reset on the way, and a worker killed and started anew."""
        run = Run([], self.driver.failed)
        back: list[threading.Thread] = []

        def between(number: int) -> None:
            if number == count // 3:
                self.workers[1].reset()
            if restart and number == count // 2:
                back.append(self._restart(self.workers[0], run))
            if number == count - count // 4:
                for thread in back:
                    thread.join()
                if back:
                    self.wait_connected()
            self.settle()

        run.outcomes = self.driver.one_by_one(Mix(SEED), count, between)
        return run

    def concurrent(self, count: int, clients: int = 8) -> Run:
        """Clients at once. A worker is killed under them after a quarter of `count` and started anew; it is
        asked for as many as that again when it is back."""
        run = Run([], self.driver.failed)
        restart: list[threading.Thread] = []
        back_at: list[int] = []

        def enough(answered: int) -> bool:
            with lock:
                if answered >= count // 4 and not restart:
                    restart.append(self._restart(self.workers[0], run))
                if restart and not restart[0].is_alive() and not back_at:
                    self.wait_connected()
                    back_at.append(answered)
            return bool(back_at) and answered >= max(count, back_at[0] + count // 2)

        lock = threading.Lock()
        mixes = [Mix(SEED + 1, client) for client in range(clients)]
        run.outcomes = self.driver.at_once(mixes, THINK_SECONDS, enough)
        return run

    def _restart(self, worker: ProofWorker, run: Run) -> threading.Thread:
        gone = time.monotonic()
        worker.kill()

        def back() -> None:
            worker.start()
            worker.wait_ready()
            run.down.setdefault(worker.name, []).append((gone, time.monotonic()))

        thread = threading.Thread(target=back, daemon=True)
        thread.start()
        return thread


def made(setup: str) -> Path:
    """The directory with an engine; made now if it is not there."""
    done = subprocess.run(
        [str(ROOT / "scripts" / setup)], capture_output=True, text=True, timeout=SETUP_SECONDS
    )
    assert done.returncode == 0, f"{setup} failed:\n{done.stderr[-4000:]}"
    return Path(done.stdout.strip())
