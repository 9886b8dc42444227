"""Simulated workers and a gateway as processes, with what can be done to them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from loadtests.processes import Child, ProcessFailedError, quiet_ports

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
START_SECONDS = 60.0
POLL_SECONDS = 0.03
PORTS = {"--port": 0, "--side-channel-port": 1, "--kv-events-port": 2, "--kv-replay-port": 3}
TIMEOUT = aiohttp.ClientTimeout(total=10)

Options = Mapping[str, object]


class Seat(msgspec.Struct, frozen=True):
    """One worker of a fleet."""

    name: str
    role: str
    model: str = "m"
    options: Options = {}
    host: str = HOST
    prefix: Sequence[str] = ()
    """What its command line begins with: a network namespace, for example."""


class Process:
    """A child with an address; its ports stay the same when it is started again."""

    def __init__(self, name: str, command: Sequence[str], url: str, folder: Path) -> None:
        self.name = name
        self.url = url
        self.child = Child(name, command, {"PYTHONPATH": str(ROOT)}, ROOT, folder / f"{name}.log")

    def __repr__(self) -> str:
        return repr(self.child)

    def start(self) -> None:
        self.child.start()

    def kill(self) -> None:
        """As a node that loses its power; thaws what is frozen."""
        self.child.kill()

    def freeze(self) -> None:
        """Its sockets stay open, and nothing more is said."""
        os.kill(self.child.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.child.pid, signal.SIGCONT)

    async def get(self, path: str) -> str:
        """The text of an answer, empty where there is none."""
        try:
            async with (
                aiohttp.ClientSession(timeout=TIMEOUT) as session,
                session.get(self.url + path) as response,
            ):
                return await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return ""

    async def post(self, path: str, body: Any) -> bytes:
        """The body of an answer of status 200; anything else is an error."""
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT) as session,
            session.post(self.url + path, json=body) as response,
        ):
            answer = await response.read()
            if response.status != 200:
                raise ProcessFailedError(f"{self.name}{path}: {response.status} {answer[:200]!r}")
            return answer

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    @property
    def resident_bytes(self) -> int:
        fields = Path(f"/proc/{self.child.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


class SimWorker(Process):
    """One simulated worker."""

    def __init__(self, seat: Seat, folder: Path, options: Options) -> None:
        ports = quiet_ports(len(PORTS))
        command = [*seat.prefix, sys.executable, "-m", "simulator", "--name", seat.name, "--role", seat.role]
        command += ["--model", seat.model, "--host", seat.host, "--side-channel-host", seat.host]
        for flag, place in PORTS.items():
            command += [flag, str(ports[place])]
        for name, value in {**options, **seat.options}.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        super().__init__(seat.name, command, f"http://{seat.host}:{ports[0]}", folder)
        self.seat = seat

    async def state(self) -> dict[str, Any]:
        """What `/sim/state` says of its only rank; empty when it does not answer."""
        text = await self.get("/sim/state")
        return msgspec.json.decode(text)["ranks"][0] if text else {}

    async def fault(self, **fields: Any) -> None:
        await self.post("/sim/fault", fields)


class Gateway(Process):
    """`kvgateway serve` in front of workers."""

    def __init__(
        self, name: str, workers: Sequence[SimWorker], folder: Path, options: Options, limits: Options
    ) -> None:
        """`limits` are keys of each worker's table in the settings file."""
        port, admin = quiet_ports(2)
        config = folder / f"{name}.toml"
        config.write_text("\n".join(_table(worker, limits) for worker in workers))
        command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config)]
        command += ["--port", str(port), "--admin-port", str(admin)]
        for key, value in options.items():
            command += [f"--{key.replace('_', '-')}", str(value)]
        super().__init__(name, command, f"http://{HOST}:{port}", folder)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        found = re.findall(
            rf"^kvgateway_{name}(?:{{(.*)}})? (\S+)$", await self.get("/metrics"), re.MULTILINE
        )
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(value) for its, value in found if all(label in its for label in wanted))

    async def ready_workers(self) -> set[str]:
        text = await self.get("/health")
        states: dict[str, str] = msgspec.json.decode(text)["workers"] if text else {}
        return {name for name, state in states.items() if state == "ready"}


class Fleet:
    """Workers, and gateways in front of all of them."""

    def __init__(self, folder: Path, seats: Sequence[Seat], options: Options) -> None:
        """`options` are flags of every worker."""
        self.folder = folder
        self.workers = {seat.name: SimWorker(seat, folder, options) for seat in seats}
        self.gateways: list[Gateway] = []

    def add_gateway(self, name: str, options: Options, limits: Options | None = None) -> Gateway:
        gateway = Gateway(name, list(self.workers.values()), self.folder, options, limits or {})
        self.gateways.append(gateway)
        return gateway

    async def start(self) -> None:
        for process in (*self.workers.values(), *self.gateways):
            process.start()
        await self.whole()

    async def whole(self) -> None:
        """Start again what is dead, and wait until every gateway has every worker."""
        for gateway in self.gateways:
            await until(partial(self._connected, gateway), f"{gateway.name} has all", START_SECONDS)

    async def _connected(self, gateway: Gateway) -> bool:
        for process in (*self.workers.values(), *self.gateways):
            if not process.child.alive:
                process.start()
        return await gateway.ready_workers() == set(self.workers)

    def stop(self) -> None:
        for process in (*self.gateways, *self.workers.values()):
            process.kill()


async def until(check: Callable[[], Any], what: str, seconds: float = 15.0) -> None:
    """Poll an awaitable check until it is true. Raises ProcessFailedError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not (answer := await check()):
        if loop.time() > deadline:
            raise ProcessFailedError(f"not within {seconds:g} s: {what} (last: {answer!r})")
        await asyncio.sleep(POLL_SECONDS)


def _table(worker: SimWorker, limits: Options) -> str:
    lines = [
        "[[workers]]",
        f'name = "{worker.name}"',
        f'role = "{worker.seat.role}"',
        f'url = "{worker.url}"',
    ]
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in limits.items()), ""])
