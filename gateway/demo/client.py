"""The tour's client: chats with the gateway, and the workers' own counters."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

TIMEOUT = aiohttp.ClientTimeout(total=120)
DONE = "[DONE]"

Json = dict[str, Any]


class RequestFailedError(Exception):
    """An answer that was not 200, or was not what the protocol says."""


class WorkerCounters(msgspec.Struct, frozen=True):
    """What a worker counts about itself."""

    running: int
    finished: int
    prompt_tokens: int


class WorkerState(msgspec.Struct, frozen=True):
    """What a simulated worker tells beside vLLM's endpoints."""

    role: str
    transport: str
    violations: int
    transferred_bytes: float
    pinned_requests: int


class _Rank(msgspec.Struct):
    transport: str = ""
    transferred_bytes: float = 0
    pinned_requests: int = 0


class _State(msgspec.Struct):
    role: str
    sim_kv_violations: int
    ranks: list[_Rank]


class Answer(msgspec.Struct):
    """A streamed answer put together, and how its stream was made."""

    reasoning: str = ""
    content: str = ""
    finish_reason: str | None = None
    usage: Json | None = None
    chunks: int = 0
    done: bool = False


class DemoClient:
    """Talks to one gateway and its workers over one session."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, workers: Mapping[str, str], model: str
    ) -> None:
        self.workers = workers
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        self._model = model

    async def chat(self, messages: list[Json], **fields: Any) -> Json:
        """A whole answer. Raises RequestFailedError."""
        return await self._chat(self._url, messages, fields)

    async def chat_with(self, worker: str, messages: list[Json], **fields: Any) -> Json:
        """A whole answer of one worker, asked directly. Raises RequestFailedError."""
        return await self._chat(f"{self.workers[worker]}/v1/chat/completions", messages, fields)

    async def _chat(self, url: str, messages: list[Json], fields: Json) -> Json:
        async with self._session.post(url, json=self._body(messages, fields)) as response:
            body = await response.read()
            if response.status != 200:
                raise RequestFailedError(f"HTTP {response.status}: {body.decode(errors='replace')[:300]}")
        answer: Json = msgspec.json.decode(body)
        return answer

    @asynccontextmanager
    async def stream(self, messages: list[Json], **fields: Any) -> AsyncIterator[AsyncIterator[str]]:
        """The data of a stream's events. Leaving early closes the connection. Raises RequestFailedError."""
        body = self._body(messages, fields | {"stream": True})
        async with self._session.post(self._url, json=body) as response:
            if response.status != 200:
                raise RequestFailedError(f"HTTP {response.status}: {(await response.text())[:300]}")
            yield _events(response)
            if not response.content.at_eof():
                response.close()

    async def streamed_answer(self, messages: list[Json], **fields: Any) -> Answer:
        """A stream read to its end. Raises RequestFailedError."""
        answer = Answer()
        async with self.stream(messages, stream_options={"include_usage": True}, **fields) as events:
            async for data in events:
                if answer.done:
                    raise RequestFailedError("something came after [DONE]")
                _add(answer, data)
        return answer

    async def counters(self) -> dict[str, WorkerCounters]:
        """Each worker's counters now."""
        return {name: await self._counters(url) for name, url in self.workers.items()}

    async def states(self) -> dict[str, WorkerState]:
        """Each simulated worker's own account of its KV blocks now."""
        return {name: await self._state(url) for name, url in self.workers.items()}

    async def _state(self, url: str) -> WorkerState:
        async with self._session.get(f"{url}/sim/state") as response:
            state = msgspec.json.decode(await response.read(), type=_State)
        return WorkerState(
            role=state.role,
            transport=", ".join(sorted({rank.transport for rank in state.ranks})),
            violations=state.sim_kv_violations,
            transferred_bytes=sum(rank.transferred_bytes for rank in state.ranks),
            pinned_requests=sum(rank.pinned_requests for rank in state.ranks),
        )

    async def _counters(self, url: str) -> WorkerCounters:
        async with self._session.get(f"{url}/metrics") as response:
            page = await response.text()
        return WorkerCounters(
            running=_sum(page, "vllm:num_requests_running"),
            finished=_sum(page, "vllm:request_success_total"),
            prompt_tokens=_sum(page, "vllm:prompt_tokens_total"),
        )

    def _body(self, messages: list[Json], fields: Json) -> Json:
        return {"model": self._model, "messages": messages} | fields


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].decode().rstrip("\r\n")


def _add(answer: Answer, data: str) -> None:
    if data == DONE:
        answer.done = True
        return
    chunk = msgspec.json.decode(data)
    answer.usage = chunk.get("usage") or answer.usage
    for choice in chunk["choices"]:
        answer.chunks += 1
        answer.reasoning += choice["delta"].get("reasoning_content") or ""
        answer.content += choice["delta"].get("content") or ""
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason


def _sum(page: str, name: str) -> int:
    values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return int(sum(map(float, values)))
