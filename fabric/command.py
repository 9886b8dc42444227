"""`kvgateway fabric-probe`: agents beside workers, and whoever has them measure each pair."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from fabric.agent import MIB, Agent, ProbeError
from fabric.control import ProbeServer, Question, ask
from fabric.memory import MemoryKind, MemoryUnavailableError, allocate
from fabric.nixl import NixlMissingError, load
from fabric.results import LinksFile, MeasuredLink, fit

FAILED = 1
UNUSABLE = 2
NO_NIXL = (
    "NIXL is not installed here: pip install --no-deps nixl-cu12==1.5.1 (or nixl-cu13) beside the worker"
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Two commands: `serve` beside each worker, `run` anywhere that reaches them."""
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    serve = actions.add_parser("serve", help="wait beside a worker to be measured", allow_abbrev=False)
    serve.add_argument("--name", default="probe", help="name in messages (default probe)")
    serve.add_argument("--host", default="0.0.0.0", help="address to listen on (default all)")
    serve.add_argument("--port", type=int, default=5800, help="port; 0 takes a free one (default 5800)")
    serve.add_argument(
        "--memory", choices=get_args(MemoryKind), default="dram", help="what is moved (default dram)"
    )
    serve.add_argument("--device", type=int, default=0, metavar="GPU", help="GPU of vram (default 0)")
    serve.add_argument(
        "--mebibytes", type=int, default=256, metavar="N", help="size of the buffer (default 256)"
    )
    serve.add_argument(
        "--transfer-seconds", type=float, default=10.0, help="longest transfer (default 10)", metavar="S"
    )
    run = actions.add_parser("run", help="measure every pair", allow_abbrev=False)
    for role in ("prefill", "decode"):
        run.add_argument(
            f"--{role}",
            action="append",
            required=True,
            metavar="WORKER=HOST:PORT",
            help=f"the probe beside a {role} worker; may be repeated",
        )
    run.add_argument("--output", metavar="FILE", help="write what the gateway reads as `measured_links`")
    run.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="longest measurement of a pair (default 60)"
    )


def run(options: argparse.Namespace) -> int:
    """0, 1 when a pair could not be measured, 2 when nothing can be done here."""
    if options.action == "run":
        links, failures = asyncio.run(_measure(options))
        if options.output:
            Path(options.output).write_bytes(msgspec.json.format(msgspec.json.encode(LinksFile(links))))
        return FAILED if failures else 0
    try:
        load()
    except NixlMissingError:
        print(f"fabric-probe: {NO_NIXL}", file=sys.stderr)
        return UNUSABLE
    return asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        memory = allocate(options.memory, options.mebibytes * MIB, options.device)
        agent = Agent(load(), f"{options.name}-{os.getpid()}", memory, options.transfer_seconds)
        server = ProbeServer(agent, await agent.open())
        port = await server.start(options.host, options.port)
    except (MemoryUnavailableError, ProbeError, OSError) as error:
        print(f"fabric-probe {options.name}: {error}", file=sys.stderr)
        return UNUSABLE
    print(f"fabric-probe {options.name}: {options.memory} on {options.host}:{port}", flush=True)
    await stop.wait()
    await server.close()
    agent.close()
    # NIXL's threads may be inside a transfer that never ends.
    sys.stdout.flush()
    os._exit(0)


async def _measure(options: argparse.Namespace) -> tuple[list[MeasuredLink], int]:
    """The links, and how many could not be measured."""
    links, failures = [], 0
    # One pair after another: they would share what is measured.
    for decode, at in _named(options.decode):
        for prefill, source in _named(options.prefill):
            try:
                link = await measure(prefill, source, decode, at, options.seconds)
            except ProbeError as error:
                failures += 1
                print(f"{prefill} -> {decode}: {error}", file=sys.stderr)
                continue
            links.append(link)
            print(_line(link), flush=True)
    return links, failures


async def measure(prefill: str, source: str, decode: str, at: str, seconds: float) -> MeasuredLink:
    """Have the probe at `at` read from the one at `source`. Raises ProbeError, within that many seconds."""
    hello = (await ask(at, Question(), seconds)).hello
    answer = await ask(at, Question(source), seconds)
    try:
        t0, descriptor, bandwidth = fit(answer.timings)
    except ValueError as error:
        raise ProbeError(f"{at}: {error}") from None
    return MeasuredLink(
        prefill=prefill,
        decode=decode,
        t0=t0,
        descriptor=descriptor,
        bandwidth=bandwidth,
        transport=answer.transport,
        memory=hello.nixl_type if hello is not None else "",
        timings=answer.timings,
    )


def _line(link: MeasuredLink) -> str:
    sizes = ", ".join(
        f"{each.pieces} x {each.piece_bytes // 1024} KiB {each.bytes / each.seconds / 1e9:.2f}"
        for each in link.timings
    )
    return (
        f"{link.prefill} -> {link.decode}: {link.memory} by {link.transport}, "
        f"{link.bandwidth / 1e9:.2f} GB/s, {link.descriptor * 1e6:.2f} us a descriptor, "
        f"{link.t0 * 1e6:.0f} us before the first byte (GB/s by shape: {sizes})"
    )


def _named(values: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for value in values:
        name, equals, address = value.partition("=")
        if not equals or not address.rpartition(":")[2].isdecimal():
            raise SystemExit(f"fabric-probe: expected WORKER=HOST:PORT, got {value!r}")
        pairs.append((name, address))
    return pairs
