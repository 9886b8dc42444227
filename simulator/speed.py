"""`python -m simulator.speed`: what one worker does in a second of its CPU, when time costs nothing.

First the engine alone, then a whole worker over HTTP; its process is the one that is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from simulator.cache import Event
from simulator.cli import ready_url
from simulator.engine import Engine
from simulator.faults import Faults
from simulator.generation import Generation
from simulator.output import Plan
from simulator.settings import SimulatorSettings

GROUPS = ("attention", "mla+mamba*3")
STREAMS = (1, 64, 256)
OUTPUT = 1000
PROMPT = 64
POOL = 16_384
LONG_PROMPT, LONG_PROMPTS = 8192, 100
SHORT_PROMPT, SHORT_PROMPTS, CLIENTS = 1024, 300, 32
TOKEN = 7
FREE = ["--decode-seconds-per-step", "0", "--prefill-seconds-per-token", "0"]
_CPU_SECONDS = re.compile(r"^process_cpu_seconds_total (\S+)", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog="simulator.speed", description=__doc__)
    parser.parse_args(argv)
    for groups in GROUPS:
        asyncio.run(_engine(groups))
        _worker(groups)
    return 0


class _EngineAlone:
    """An engine with a pool that overflows, and the hashes in the events that it gave."""

    def __init__(self, groups: str) -> None:
        self.hashes = 0
        settings = SimulatorSettings(
            kv_groups=groups,
            num_blocks=POOL,
            prefill_seconds_per_token=0.0,
            decode_seconds_per_step=0.0,
        )
        self._engine = Engine(settings, self._publish, Faults(sys.exit))

    async def run(self, prompt: list[int], tokens: int) -> None:
        """One request."""
        plan = Plan([TOKEN] * tokens, "length", None)
        generation = Generation(index=0, token_ids=prompt, plan=plan, tokens_per_step=1)
        async for _ in self._engine.run([generation]):
            pass

    def _publish(self, events: list[Event]) -> None:
        self.hashes += sum(len(event["block_hashes"]) for event in events)


async def _engine(groups: str) -> None:
    alone = _EngineAlone(groups)
    for streams in STREAMS:
        begun = time.process_time()
        await asyncio.gather(*(alone.run(_prompt(place, PROMPT), OUTPUT) for place in range(streams)))
        seconds = time.process_time() - begun
        _show(groups, f"engine, {streams} streams", "tokens", streams * OUTPUT / seconds)
    begun, before = time.process_time(), alone.hashes
    for place in range(LONG_PROMPTS):
        await alone.run(_prompt(STREAMS[-1] + place, LONG_PROMPT), 1)
    seconds = time.process_time() - begun
    _show(groups, "engine, prompts", "tokens", LONG_PROMPT * LONG_PROMPTS / seconds)
    _show(groups, "engine, prompts", "hashes", (alone.hashes - before) / seconds)


def _worker(groups: str) -> None:
    command = [sys.executable, "-m", "simulator", "--kv-groups", groups, *FREE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = ready_url(process.stdout.readline())
            assert url is not None
            asyncio.run(_ask(groups, url))
        finally:
            process.terminate()


async def _ask(groups: str, url: str) -> None:
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as client:
        for path, body in _STREAMED.items():
            seconds = await _cpu(client, [_post(client, path, body(place)) for place in range(STREAMS[1])])
            _show(groups, f"{path}, {STREAMS[1]} streams", "tokens", STREAMS[1] * OUTPUT / seconds)
        turn = asyncio.Semaphore(CLIENTS)

        async def short(place: int) -> None:
            async with turn:
                await _post(client, "/inference/v1/generate", _generate(_prompt(place, SHORT_PROMPT), 1))

        seconds = await _cpu(client, [short(place) for place in range(SHORT_PROMPTS)])
        _show(groups, f"prompts of {SHORT_PROMPT} tokens", "requests", SHORT_PROMPTS / seconds)


async def _cpu(client: aiohttp.ClientSession, work: Sequence[Awaitable[None]]) -> float:
    """Seconds of the worker's CPU that the work took."""
    before = await _cpu_seconds(client)
    await asyncio.gather(*work)
    return await _cpu_seconds(client) - before


async def _cpu_seconds(client: aiohttp.ClientSession) -> float:
    async with client.get("/metrics") as response:
        found = _CPU_SECONDS.search(await response.text())
    assert found is not None
    return float(found[1])


async def _post(client: aiohttp.ClientSession, path: str, body: Any) -> None:
    async with client.post(path, json=body) as response:
        response.raise_for_status()
        await response.read()


def _prompt(place: int, length: int) -> list[int]:
    return [place, *range(length - 1)]


def _generate(prompt: list[int], tokens: int, *, stream: bool = False) -> Any:
    sampling = {"max_tokens": tokens, "extra_args": _script(tokens)}
    return {"token_ids": prompt, "stream": stream, "sampling_params": sampling}


def _script(tokens: int) -> Any:
    return {"script_ids": [TOKEN] * tokens}


def _completion(place: int) -> Any:
    return {
        "prompt": _prompt(place, PROMPT),
        "stream": True,
        "max_tokens": OUTPUT,
        "vllm_xargs": _script(OUTPUT),
    }


def _chat(place: int) -> Any:
    messages = [{"role": "user", "content": f"{place}"}]
    return {"messages": messages, "stream": True, "max_tokens": OUTPUT, "vllm_xargs": _script(OUTPUT)}


_STREAMED: dict[str, Callable[[int], Any]] = {
    "/inference/v1/generate": lambda place: _generate(_prompt(place, PROMPT), OUTPUT, stream=True),
    "/v1/completions": _completion,
    "/v1/chat/completions": _chat,
}


def _show(groups: str, what: str, unit: str, value: float) -> None:
    print(f"{groups:12} {what:36} {value:12,.0f} {unit}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
