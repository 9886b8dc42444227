"""Starts the demo's fleet: the workers of a topology, then the gateway in front of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from gateway.demo.processes import POLL_SECONDS, Child, Processes
from gateway.demo.topology import DEFAULT_TOPOLOGY, TOPOLOGIES, Seat
from simulator.cli import ready_url

HOST = "127.0.0.1"
MODEL = "moonshotai/Kimi-K3"
START_SECONDS = 60.0
DRAIN_SECONDS = 1.0
DECODE_SECONDS = 0.005
PREFILL_SECONDS = 2e-6
"""A token: a prompt of a million takes two seconds."""

Found = TypeVar("Found")
Say = Callable[[str], None]


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `kvgateway demo` was asked for; port 0 takes a free one."""

    port: int = 8000
    admin_port: int = 0
    tokenizer: str | None = None
    policy: str = "kv"
    topology: str = DEFAULT_TOPOLOGY
    transport: str = "auto"

    @property
    def seats(self) -> Sequence[Seat]:
        return TOPOLOGIES[self.topology]


class DemoFleet(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of a running demo."""

    url: str
    admin_url: str
    workers: dict[str, str]
    """URL of each worker, by name."""
    seats: Sequence[Seat]

    @property
    def aggregated(self) -> bool:
        """Every worker prefills and decodes."""
        return all(seat.role == "aggregated" for seat in self.seats)

    @property
    def decode_workers(self) -> int:
        return sum(seat.role == "decode" for seat in self.seats)


class _Feed(msgspec.Struct):
    state: str


class _Worker(msgspec.Struct):
    state: str
    feeds: list[_Feed] = []


class _Workers(msgspec.Struct):
    workers: list[_Worker]


async def launch(options: DemoOptions, processes: Processes, say: Say) -> DemoFleet:
    """Start everything and wait until the gateway has all the workers. Raises DemoError."""
    ports = free_ports(options.port, options.admin_port)
    seats = options.seats
    workers = [processes.start(seat.name, "simulator", _worker_arguments(seat, options)) for seat in seats]
    urls = {child.name: await _wait_for(processes, partial(_worker_url, child)) for child in workers}
    for child in workers:
        say(f"worker   {child.name}  {urls[child.name]}  (process {child.process.pid})")
    config = processes.folder / "gateway.toml"
    config.write_text(_gateway_config(seats, urls))
    gateway = processes.start("gateway", "gateway.cli", _gateway_arguments(options, ports, config))
    fleet = DemoFleet(
        url=f"http://{HOST}:{ports[0]}", admin_url=f"http://{HOST}:{ports[1]}", workers=urls, seats=seats
    )
    async with aiohttp.ClientSession() as client:
        await _wait_for(processes, lambda: _all_ready(client, fleet))
    details = f"process {gateway.process.pid}, policy {options.policy}, admin {fleet.admin_url}"
    say(f"gateway  {fleet.url}  ({details})")
    return fleet


def free_ports(*wanted: int) -> list[int]:
    """The wanted ports, each 0 replaced by a free one. Raises DemoError when one is taken."""
    sockets: list[socket.socket] = []
    try:
        for port in wanted:
            sockets.append(socket.socket())
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sockets[-1].bind((HOST, port))
            except OSError as error:
                raise DemoError(
                    f"port {port} cannot be used ({error.strerror}); choose another one"
                ) from None
        return [taken.getsockname()[1] for taken in sockets]
    finally:
        for taken in sockets:
            taken.close()


def _worker_arguments(seat: Seat, options: DemoOptions) -> list[str]:
    tokenizer = ["--tokenizer", options.tokenizer] if options.tokenizer else []
    transport = {} if seat.role == "aggregated" else {"--role": seat.role, "--transport": options.transport}
    fixed = {
        "--name": seat.name,
        "--host": HOST,
        "--port": "0",
        "--model": MODEL,
        "--decode-seconds-per-step": str(DECODE_SECONDS),
        "--prefill-seconds-per-token": str(PREFILL_SECONDS),
        **transport,
    }
    return [*_flags(fixed), *tokenizer]


def _gateway_config(seats: Sequence[Seat], urls: Mapping[str, str]) -> str:
    """The gateway's settings file: a worker's role has no flag."""
    tables = (
        f'[[workers]]\nname = "{seat.name}"\nurl = "{urls[seat.name]}"\nrole = "{seat.role}"\n'
        for seat in seats
    )
    return "\n".join(tables)


def _gateway_arguments(options: DemoOptions, ports: list[int], config: Path) -> list[str]:
    tokenizer = ["--tokenizer", options.tokenizer] if options.tokenizer else []
    fixed = {
        "--config": str(config),
        "--host": HOST,
        "--port": str(ports[0]),
        "--admin-host": HOST,
        "--admin-port": str(ports[1]),
        "--policy": options.policy,
        "--drain-seconds": str(DRAIN_SECONDS),
    }
    return ["serve", *_flags(fixed), *tokenizer]


def _flags(values: Mapping[str, str]) -> list[str]:
    return [part for pair in values.items() for part in pair]


async def _worker_url(child: Child) -> str | None:
    return ready_url(child.text())


async def _all_ready(client: aiohttp.ClientSession, fleet: DemoFleet) -> bool | None:
    """True once the gateway serves with every worker and follows the events of each."""
    try:
        async with client.get(f"{fleet.url}/ready") as response:
            if response.status != 200:
                return None
        async with client.get(f"{fleet.admin_url}/workers") as response:
            workers = msgspec.json.decode(await response.read(), type=_Workers).workers
    except (aiohttp.ClientError, msgspec.DecodeError):
        return None
    return True if len(workers) == len(fleet.workers) and all(map(_follows, workers)) else None


def _follows(worker: _Worker) -> bool:
    return worker.state == "ready" and any(feed.state == "exact" for feed in worker.feeds)


async def _wait_for(processes: Processes, find: Callable[[], Awaitable[Found | None]]) -> Found:
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                if (dead := processes.first_dead()) is not None:
                    raise DemoError(dead.obituary())
                if (found := await find()) is not None:
                    return found
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        logs = "\n".join(f"--- {child.name}\n{child.text()}" for child in processes.children)
        raise DemoError(f"it did not start within {START_SECONDS:g} s\n{logs}") from None
