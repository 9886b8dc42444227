"""The gateway in front of some of the workers, as a process that is measured."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtests.gpu.client import Client, get, metrics, status
from loadtests.gpu.workers import ROOT, Role, Site, Worker
from loadtests.processes import Child, ProcessFailedError, free_ports, wait_until

READY_SECONDS = 60.0
FOLLOW_SECONDS = 10.0
JSON_BODY = {"Content-Type": "application/json"}
Member = tuple[Worker, Role]


class Front:
    """`kvgateway serve` with its configuration file."""

    def __init__(
        self, name: str, members: Sequence[Member], site: Site, labels: Mapping[str, str], **settings: object
    ) -> None:
        """`labels` are every worker's; `settings` are lines of the file."""
        self.port, self.admin_port = free_ports(2)
        self.url, self.admin = (f"http://127.0.0.1:{port}" for port in (self.port, self.admin_port))
        self.config = site.logs / f"{name}.toml"
        self.config.write_text(_toml(members, site, labels, settings))
        command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(self.config)]
        command += ["--port", str(self.port), "--admin-port", str(self.admin_port)]
        self.child = Child(name, command, {}, ROOT, site.logs / f"{name}.log")
        self._feeds = len(members)

    def client(self) -> Client:
        """A new connection."""
        return Client(self.url)

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        return time.clock_gettime((~self.child.pid << 3) | 2)  # the clock of another process

    def metrics(self) -> Mapping[str, float]:
        """Its counters, summed over labels."""
        return metrics(self.admin)

    def workers(self) -> Any:
        """What its admin port says of workers and pairs."""
        return get(f"{self.admin}/workers")

    def explain(self, request: Mapping[str, Any]) -> Any:
        """Where a request would go."""
        ask = urllib.request.Request(f"{self.admin}/v1/route", json.dumps(request).encode(), JSON_BODY)
        with urllib.request.urlopen(ask, timeout=30) as response:
            return json.load(response)

    def connected(self) -> bool:
        """All its workers are ready."""
        return all(worker["state"] == "ready" for worker in self.workers()["workers"])

    def follows(self) -> bool:
        """The events of all its workers are followed without a gap."""
        feeds = [feed["state"] for worker in self.workers()["workers"] for feed in worker["feeds"]]
        return feeds == ["exact"] * self._feeds


@contextmanager
def gateway(
    name: str,
    members: Sequence[Member],
    site: Site,
    labels: Mapping[str, str] | None = None,
    **settings: object,
) -> Iterator[Front]:
    """A running gateway that knows all its workers."""
    front = Front(name, members, site, labels or {}, **settings)
    front.child.start()
    try:
        front.child.wait_ready(lambda: status(f"{front.url}/live") == 200, READY_SECONDS)
        wait_until("the gateway has its workers", front.connected, READY_SECONDS)
        with contextlib.suppress(ProcessFailedError):  # what it cannot follow shows in the results
            wait_until("their events are followed", front.follows, FOLLOW_SECONDS)
        yield front
    finally:
        front.child.stop()


def _toml(
    members: Sequence[Member], site: Site, labels: Mapping[str, str], settings: Mapping[str, object]
) -> str:
    lines = [f"tokenizer = {_quoted(site.model / 'vocabulary')}"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    for worker, role in members:
        lines += ["", "[[workers]]", f'name = "{worker.seat.name}"', f'url = "{worker.url}"']
        lines += [f'role = "{role}"', f'kv_events = "tcp://127.0.0.1:{worker.events}"']
        lines += [f'kv_replay = "tcp://127.0.0.1:{worker.replay}"']
        if worker.seat.connector:
            lines.append(f'side_channel = "127.0.0.1:{worker.side}"')
        if labels:
            table = ", ".join(f'{name} = "{value}"' for name, value in labels.items())
            lines.append(f"labels = {{ {table} }}")
    return "\n".join(lines) + "\n"


def _quoted(path: Path) -> str:
    return json.dumps(str(path))
