"""Command line of one simulated worker: `python -m simulator`."""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, get_args

import uvloop
import zmq
from aiohttp import web

from fabric.nixl import NixlMissingError, load
from simulator.kv.transport import TransferError
from simulator.ranks import Ranks
from simulator.server import Worker
from simulator.settings import FailurePolicy, Role, SimulatorSettings, TransportName
from simulator.tokens import Tokens

DEFAULTS = SimulatorSettings()
SHUTDOWN_SECONDS = 0.5
NIXL_MISSING = 2
_READY = re.compile(r"^simulator .* on (http://\S+), KV events on ", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the worker's options; each one is a field of `SimulatorSettings`."""

    def option(flag: str, kind: Callable[[str], Any], text: str, metavar: str) -> None:
        default = getattr(DEFAULTS, flag.removeprefix("--").replace("-", "_"))
        shown = "" if default is None else f" (default {default})"
        parser.add_argument(flag, type=kind, default=default, help=text + shown, metavar=metavar)

    option("--name", str, "what the worker calls itself in its log", "NAME")
    option("--host", str, "address to listen on", "HOST")
    option("--port", _port, "HTTP port; 0 takes a free one", "PORT")
    option("--model", str, "model name to serve", "NAME")
    option("--model-format", str, "format of prompts and outputs", "NAME")
    option(
        "--tokenizer", str, "directory with a tiktoken.model; without it the small one in the package", "DIR"
    )
    option("--block-size", int, "tokens in a KV block", "TOKENS")
    option("--num-blocks", int, "KV blocks of a rank's pool", "N")
    option("--kv-groups", str, "KV groups, as in mla+mamba*3 or attention+sliding_window:1024", "GROUPS")
    option("--dp-size", int, "data-parallel ranks; rank N publishes on the KV event ports plus N", "N")
    option("--max-model-len", int, "largest prompt and output together; without it what fits", "TOKENS")
    option("--max-num-seqs", int, "sequences that run at once", "N")
    option("--max-num-batched-tokens", int, "prompt tokens of one prefill step", "TOKENS")
    option("--prefill-seconds-per-token", float, "time to compute one uncached prompt token", "SECONDS")
    option("--decode-seconds-per-step", float, "time of one decode step", "SECONDS")
    option("--decode-seconds-per-sequence", float, "time that each sequence adds to a decode step", "SECONDS")
    option("--jitter", float, "share by which a step may take more or less time, 0 to 1", "SHARE")
    option("--tokens-per-step", int, "tokens that one decode step gives", "N")
    option("--speedup", float, "divides these times", "FACTOR")
    option("--hash-seed", str, "seed of the block hashes, vLLM's PYTHONHASHSEED", "SEED")
    option("--kv-events-port", _port, "port of the KV event publisher; 0 takes a free one", "PORT")
    option("--kv-replay-port", _port, "port of the KV event replay; 0 takes a free one", "PORT")
    option("--kv-topic", str, "topic of the KV events", "TOPIC")
    option("--kv-buffer-steps", int, "event batches kept for replay", "N")
    option("--keep-alive-seconds", float, "how long an idle connection stays open", "SECONDS")
    option(
        "--kv-bytes-per-token",
        int,
        "KV of a token in a group; without it 128, or 8 where nothing moves it",
        "BYTES",
    )
    option("--side-channel-host", str, "address of the KV side channel, for decode workers", "HOST")
    option("--side-channel-port", _port, "port of the KV side channel; 0 takes a free one", "PORT")
    option("--kv-lease-seconds", float, "how long unread blocks of a prefill leg are kept", "SECONDS")
    option("--handshake-seconds", float, "how long to wait for a peer's side channel", "SECONDS")
    parser.add_argument(
        "--force-include-usage", action="store_true", help="usage on every chunk of a completions stream"
    )
    parser.add_argument(
        "--disable-scale-out",
        action="store_true",
        help="refuse token-id endpoints and rendering, as a vLLM without --enable-scale-out does",
    )
    _add_transfer_arguments(parser)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, got {text!r}")
    return int(text)


def _add_transfer_arguments(parser: argparse.ArgumentParser) -> None:
    def choice(flag: str, values: object, text: str) -> None:
        default = getattr(DEFAULTS, flag.removeprefix("--").replace("-", "_"))
        parser.add_argument(
            flag, choices=get_args(values), default=default, help=f"{text} (default {default})"
        )

    choice("--role", Role, "what the worker is for; one with a transport takes prefill and decode legs alike")
    choice("--transport", TransportName, "what moves KV blocks; auto: nixl, none for an aggregated worker")
    choice("--kv-load-failure-policy", FailurePolicy, "what a failed KV transfer does to its request")
    parser.add_argument(
        "--survive-incomplete-params",
        action="store_true",
        help="compute a prompt whose kv_transfer_params lack something, instead of dying as vLLM does",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.

    0 after a stop, 1 when the worker could not start, 2 when it needs NIXL and that is not installed.
    """
    settings = SimulatorSettings(
        **{name: getattr(args, name) for name in SimulatorSettings.__struct_fields__}
    )
    try:
        settings.check()
        tokens = Tokens.load(settings.model_format, settings.tokenizer)
        if settings.kv_transport == "nixl":
            load()
    except (KeyError, OSError, ValueError) as error:
        print(f"simulator {settings.name}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except NixlMissingError as error:
        print(f"simulator {settings.name}: {error}; --transport inline does without", file=sys.stderr)
        return NIXL_MISSING
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings, tokens))


async def serve(settings: SimulatorSettings, tokens: Tokens) -> int:
    """The worker's life on the running loop. Signals end it."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ranks = Ranks(settings)
    runner: web.AppRunner | None = None
    try:
        ranks.start()
        runner = await start_http(Worker(settings, tokens, ranks), settings)
        print(_ready_line(settings, runner, ranks), flush=True)
        await stop.wait()
    except (OSError, TransferError, zmq.ZMQError) as error:
        print(f"simulator {settings.name}: {error}", file=sys.stderr)
        return 1
    finally:
        if runner is not None:
            await runner.cleanup()
        await ranks.close()
    return 0


async def start_http(worker: Worker, settings: SimulatorSettings) -> web.AppRunner:
    """Listen; a client that goes away cancels its handler, which stops the generation. Raises OSError."""
    runner = web.AppRunner(
        worker.app(),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=settings.keep_alive_seconds,
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    await runner.setup()
    await web.TCPSite(runner, settings.host, settings.port).start()
    return runner


def ready_url(log: str) -> str | None:
    """The worker's address, once its log has the line that says so."""
    found = _READY.search(log)
    return found[1] if found else None


def _ready_line(settings: SimulatorSettings, runner: web.AppRunner, ranks: Ranks) -> str:
    port = runner.addresses[0][1]
    events = " ".join(rank.publisher.endpoint for rank in ranks)
    replay = " ".join(rank.publisher.replay_endpoint for rank in ranks)
    channels = " ".join(rank.connector.handoff.endpoint for rank in ranks if rank.connector.handoff)
    handoff = f", {settings.kv_transport} side channel on {channels}" if channels else ""
    return (
        f"simulator {settings.name}: {settings.model} on http://{settings.host}:{port}, "
        f"KV events on {events}, replay on {replay}{handoff}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m simulator`."""
    parser = argparse.ArgumentParser(prog="simulator", description="A simulated vLLM worker.")
    add_arguments(parser)
    return run(parser.parse_args(argv))
