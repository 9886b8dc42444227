"""A worker in the test's own process, with a vocabulary of bytes and K3's control ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from aiohttp import web

from parsers.registry import get_format
from simulator.cli import start_http
from simulator.ranks import Ranks
from simulator.server import Worker
from simulator.settings import SimulatorSettings
from simulator.tokens import Tokens

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures" / "vllm-0.32.0"
NAMES = ("[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>")
FIRST_CONTROL_ID = 163_584
SIZE = 163_840


class ByteVocabulary:
    """Every byte is a token; ids between the bytes and the control ids are empty."""

    size = SIZE

    def encode_text(self, text: str) -> Sequence[int]:
        return list(text.encode())

    def control_id(self, text: str) -> int:
        if text not in NAMES:
            raise KeyError(text)
        return FIRST_CONTROL_ID + NAMES.index(text)

    def token_bytes(self) -> list[bytes]:
        table = [bytes([value]) for value in range(256)] + [b""] * (SIZE - 256)
        table[629], table[1936] = b" >", b" ht"  # what the recorded model says all the time
        for name in NAMES:
            table[self.control_id(name)] = name.encode()
        return table


class RunningWorker:
    """A worker, its address and its sockets."""

    def __init__(self, ranks: Ranks, runner: web.AppRunner) -> None:
        self.ranks = ranks
        self.runner = runner
        self.engine = ranks[0].engine
        self.connector = ranks[0].connector
        self.publisher = ranks[0].publisher
        self.port: int = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"


@pytest.fixture
def tokens() -> Tokens:
    return Tokens(get_format("kimi_k3"), ByteVocabulary())


@pytest.fixture
async def start(tokens: Tokens) -> AsyncIterator[Callable[..., Awaitable[RunningWorker]]]:
    """Starts workers; settings are keyword arguments. Time costs nothing unless asked for."""
    running: list[RunningWorker] = []

    async def start_worker(**options: object) -> RunningWorker:
        free = {"prefill_seconds_per_token": 0.0, "decode_seconds_per_step": 0.0, "num_blocks": 512}
        settings = SimulatorSettings(**(free | options))  # type: ignore[arg-type]
        settings.check()
        ranks = Ranks(settings)
        ranks.start()
        running.append(RunningWorker(ranks, await start_http(Worker(settings, tokens, ranks), settings)))
        return running[-1]

    yield start_worker
    for one in running:
        await one.runner.cleanup()
        await one.ranks.close()


@pytest.fixture
def captures() -> Path:
    if not CAPTURES.is_dir():
        pytest.skip(f"no recorded vLLM traffic at {CAPTURES}")
    return CAPTURES
