"""The command line of `kvgateway demo`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from gateway.demo.launcher import MODEL, DemoError, DemoFleet, DemoOptions, launch
from gateway.demo.processes import Processes
from gateway.demo.topology import TOPOLOGIES, TRANSPORTS
from gateway.demo.tour import tour

DEFAULTS = DemoOptions()
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the demo's options."""
    parser.add_argument(
        "--port",
        type=_port,
        default=DEFAULTS.port,
        metavar="PORT",
        help=f"port of the gateway, 0 takes a free one (default {DEFAULTS.port})",
    )
    parser.add_argument(
        "--admin-port",
        type=_port,
        default=DEFAULTS.admin_port,
        metavar="PORT",
        help="port of the gateway's admin API (default: a free one)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="directory with a tiktoken.model, for all three (default: the small one in the package)",
    )
    parser.add_argument(
        "--policy",
        default=DEFAULTS.policy,
        metavar="NAME",
        help=f"the gateway's routing policy (default {DEFAULTS.policy})",
    )
    parser.add_argument(
        "--topology",
        default=DEFAULTS.topology,
        choices=list(TOPOLOGIES),
        help=f"workers: agg = two that do everything, 1p2d = one that prefills, two that decode, and so on "
        f"(default {DEFAULTS.topology})",
    )
    parser.add_argument(
        "--transport",
        default=DEFAULTS.transport,
        choices=list(TRANSPORTS),
        help="what moves KV blocks between workers; inline copies over ZeroMQ where NIXL is not installed "
        f"(default {DEFAULTS.transport})",
    )
    parser.add_argument(
        "--check", action="store_true", help="take a tour, print what each step proved, and end with 0 or 1"
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, got {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    0: a signal stopped it, or all checks passed. 1: something failed. 130: a signal cut the checks short.
    """
    options = DemoOptions(
        port=args.port,
        admin_port=args.admin_port,
        tokenizer=args.tokenizer,
        policy=args.policy,
        topology=args.topology,
        transport=args.transport,
    )
    return asyncio.run(_run(options, check=args.check))


async def _run(options: DemoOptions, *, check: bool) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory(prefix="kvgateway-demo-") as folder:
        async with Processes(Path(folder)) as processes:
            work = asyncio.create_task(_work(options, processes, check=check))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in (work, stopped):
                task.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)
            if work.cancelled():
                _say("stopping")
        if work.cancelled():
            return INTERRUPTED if check else 0
        return work.result()


async def _work(options: DemoOptions, processes: Processes, *, check: bool) -> int:
    _say(f"starting {len(options.seats)} simulated workers ({options.topology}) and a gateway")
    try:
        fleet = await launch(options, processes, _say)
        if check:
            return 0 if await tour(fleet, _say) else 1
        _say(_usage(fleet))
        raise DemoError((await processes.wait_for_a_death()).obituary())
    except DemoError as error:
        print(f"kvgateway demo: {error}", file=sys.stderr, flush=True)
        return 1


def _usage(fleet: DemoFleet) -> str:
    messages = '[{"role": "user", "content": "Hello"}]'
    body = f'{{"model": "{MODEL}", "messages": {messages}}}'
    return f"""
{fleet.url}/v1 is ready. Ask it:

    curl -s {fleet.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'

or from Python:

    from openai import OpenAI
    client = OpenAI(base_url="{fleet.url}/v1", api_key="none")
    answer = client.chat.completions.create(model="{MODEL}", messages={messages})
    print(answer.choices[0].message.reasoning_content)
    print(answer.choices[0].message.content)

Ctrl-C stops everything."""


def _say(line: str) -> None:
    print(line, flush=True)
