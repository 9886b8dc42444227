"""A prefill worker and a decode worker in the test's own process, blocks copied inline."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

RunningWorker = Any  # of ../conftest.py
Json = dict[str, Any]

_USUAL = re.compile(r'(engine|model_name)="[^"]*",?')

REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class Pair:
    """Two workers and what a gateway does with them. `exits`: statuses that they would have ended with."""

    def __init__(self, client: aiohttp.ClientSession, prefill: RunningWorker, decode: RunningWorker) -> None:
        self.prefill_worker = prefill
        self.decode_worker = decode
        self.exits: list[int] = []
        for worker in (prefill, decode):
            worker.ranks.faults.exit = self.exits.append
        self._client = client

    async def post(self, worker: RunningWorker, body: Json, path: str = "/v1/completions") -> tuple[int, Any]:
        """Status and answer; a stream's text as it is."""
        async with self._client.post(worker.url + path, json=body) as response:
            text = await response.text()
        return response.status, text if body.get("stream") and response.status == 200 else json.loads(text)

    async def prefill(self, ids: list[int], **fields: Any) -> Json:
        """A prefill leg's kv_transfer_params."""
        body = {"prompt": ids, "max_tokens": 1, "kv_transfer_params": REMOTE_DECODE} | fields
        status, answer = await self.post(self.prefill_worker, body)
        assert status == 200
        params: Json = answer["kv_transfer_params"]
        return params

    async def decode(self, ids: list[int], params: Json | None, **fields: Any) -> tuple[int, Any]:
        """A decode leg."""
        body = {"prompt": ids, "max_tokens": 400, "kv_transfer_params": params} | fields
        return await self.post(self.decode_worker, body)

    async def both(self, ids: list[int], **fields: Any) -> str:
        """The text of a disaggregated answer."""
        status, answer = await self.decode(ids, await self.prefill(ids), **fields)
        assert status == 200
        text: str = answer["choices"][0]["text"]
        return text

    async def alone(self, ids: list[int], **fields: Any) -> str:
        """The text that the prefill worker gives by itself, from nothing."""
        body = {"prompt": ids, "max_tokens": 400, "cache_salt": "alone"} | fields
        status, answer = await self.post(self.prefill_worker, body)
        assert status == 200
        text: str = answer["choices"][0]["text"]
        return text

    async def fault(self, worker: RunningWorker, **faults: Any) -> Json:
        """Set faults; the ones in force."""
        status, answer = await self.post(worker, faults, "/sim/fault")
        assert status == 200
        found: Json = answer
        return found

    async def state(self, worker: RunningWorker) -> Json:
        """A worker's first rank, with what the worker as a whole says of itself."""
        async with self._client.get(worker.url + "/sim/state") as response:
            state: Json = await response.json()
        return state | state["ranks"][0]

    async def metrics(self, worker: RunningWorker) -> dict[str, float]:
        """Samples by name and labels, less the two that all have."""
        async with self._client.get(worker.url + "/metrics") as response:
            page = await response.text()
        found = {}
        for line in page.splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                found[_USUAL.sub("", series).replace(",}", "}").replace("{}", "")] = float(value)
        return found

    async def violations(self) -> int:
        """Of the decode worker."""
        count: int = (await self.state(self.decode_worker))["sim_kv_violations"]
        return count

    async def exited(self) -> int:
        """The status that a worker would have ended with."""
        for _ in range(2000):
            if self.exits:
                return self.exits[0]
            await asyncio.sleep(0.005)
        raise AssertionError("it never ended")

    async def until(self, worker: RunningWorker, **expected: Any) -> Json:
        """Wait for a state."""
        for _ in range(2000):
            state = await self.state(worker)
            if all(state[name] == value for name, value in expected.items()):
                return state
            await asyncio.sleep(0.005)
        raise AssertionError(f"never {expected}: {state}")


StartPair = Callable[..., Awaitable[Pair]]


@pytest.fixture
async def pair(start: Callable[..., Awaitable[RunningWorker]]) -> AsyncIterator[StartPair]:
    """Starts pairs; settings are keyword arguments, `prefill` and `decode` those of one of them."""
    async with aiohttp.ClientSession() as client:

        async def start_pair(prefill: Json | None = None, decode: Json | None = None, **options: Any) -> Pair:
            options = {"transport": "inline", "block_size": 16} | options
            return Pair(
                client,
                await start(**({"role": "prefill", "name": "p"} | options | (prefill or {}))),
                await start(**({"role": "decode", "name": "d"} | options | (decode or {}))),
            )

        yield start_pair


@pytest.fixture
def prompt() -> Callable[[int, int], list[int]]:
    """Token ids, other ones for each seed."""
    return lambda count, seed=0: [
        (index * 7 + seed * 13 + index * index * seed) % 250 for index in range(count)
    ]
