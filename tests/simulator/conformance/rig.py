"""A simulated worker in this process, asked over HTTP and heard over ZeroMQ, as the recorder did it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec
import zmq
import zmq.asyncio
from aiohttp import web

from loadtests.processes import free_ports
from simulator.cli import start_http
from simulator.clock import Timing
from simulator.publisher import EventPublisher
from simulator.ranks import Ranks
from simulator.server import Worker
from simulator.settings import SimulatorSettings
from simulator.tokens import Tokens
from tests.simulator.conformance.recorded import Message

PROBE = b"probe"
END = b"\xff" * 8
FREE = {"prefill_seconds_per_token": 0.0, "decode_seconds_per_step": 0.0}


class Ask(NamedTuple):
    """One generation: what goes in and, as the recorded model said it, what comes out."""

    prompt: list[int]
    output: list[int]
    salt: str | None = None


class Answer(NamedTuple):
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Rig:
    """One worker at a time, always on the same ports, and a subscriber that outlives it."""

    def __init__(self, tokens: Tokens, **settings: Any) -> None:
        self._tokens = tokens
        self._context = zmq.asyncio.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._client = aiohttp.ClientSession()
        self._ports = free_ports(3)
        self._given = settings
        self._heard = 0
        self._life: tuple[web.AppRunner, Ranks] | None = None

    async def start(self, **settings: Any) -> None:
        """Begin a life. `settings` are on top of the rig's own; steps take no time unless they say so."""
        port, events, replay = self._ports
        fields = FREE | self._given | settings
        self.settings = SimulatorSettings(
            port=port, kv_events_port=events, kv_replay_port=replay, hash_seed="0", **fields
        )
        self.settings.check()
        ranks = Ranks(self.settings)
        ranks.start()
        self.ranks = ranks
        self.engine = ranks[0].engine
        worker = Worker(self.settings, self._tokens, ranks)
        self._life = (await start_http(worker, self.settings), ranks)
        self._sub.setsockopt(zmq.SUBSCRIBE, b"")
        self._sub.connect(self._publisher.endpoint)
        await self._until_subscribed()

    @property
    def running(self) -> bool:
        """Whether there is a life."""
        return self._life is not None

    async def stop(self) -> None:
        """End the life; nothing is announced."""
        if self._life is not None:
            runner, ranks = self._life
            self._life = None
            await runner.cleanup()
            await ranks.close()

    async def close(self) -> None:
        """End everything."""
        await self.stop()
        await self._client.close()
        self._context.destroy(linger=0)

    def pace(self, **times: float) -> None:
        """Let steps take other times from now on."""
        self.engine._timing = Timing(msgspec.structs.replace(self.settings, **times))

    async def messages(self) -> list[Message]:
        """All that was published since the last call."""
        found: list[Message] = []
        while self._heard < self._publisher.sequence:
            found.append(Message(await self._sub.recv_multipart()))
            self._heard = found[-1].sequence + 1
        return found

    async def replay(self, first: int) -> list[Message]:
        """A replay from `first`, its end included."""
        socket = self._context.socket(zmq.DEALER)
        socket.connect(self._publisher.replay_endpoint)
        await socket.send_multipart([b"", first.to_bytes(8, "big")])
        found: list[Message] = []
        while not found or found[-1].frames[-2] != END:
            found.append(Message(await socket.recv_multipart()))
        socket.close(linger=0)
        return found

    async def replay_over_req(self, first: int) -> list[Message]:
        """The same over a REQ socket, which takes one answer for a question."""
        socket = self._context.socket(zmq.REQ)
        socket.connect(self._publisher.replay_endpoint)
        await socket.send(first.to_bytes(8, "big"))
        found = [Message(await socket.recv_multipart())]
        socket.close(linger=0)
        return found

    async def ask(self, ask: Ask) -> int:
        """Run a generation; the cached tokens that the worker reports."""
        script = {"max_tokens": len(ask.output), "extra_args": {"script_ids": ask.output}, "ignore_eos": True}
        body = {"token_ids": ask.prompt, "sampling_params": script, "cache_salt": ask.salt}
        answer = await self.http("POST", "/inference/v1/generate", body=msgspec.json.encode(body))
        assert answer.status == 200, answer.body
        cached: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    async def http(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        """One exchange."""
        sent = {"Content-Type": "application/json"} if headers is None else headers
        url = f"http://{self.settings.host}:{self._ports[0]}{path}"
        async with self._client.request(method, url, headers=sent, data=body or None) as response:
            kept = {key.lower(): value for key, value in response.headers.items()}
            return Answer(response.status, kept, await response.read())

    async def http_part(self, path: str, headers: dict[str, str], body: bytes, events: int) -> bytes:
        """The first events of a stream, then leave; for none, leave once the request runs."""
        url = f"http://{self.settings.host}:{self._ports[0]}{path}"
        request = asyncio.create_task(self._client.post(url, headers=headers, data=body))
        if not events:
            await self.until(lambda: self.engine.counters.running == 1)
            request.cancel()
            return b""
        received = b""
        async with await request as response:
            while received.count(b"\n\n") < events and not response.content.at_eof():
                received += await response.content.readany()
            response.close()
        return b"".join(part + b"\n\n" for part in received.split(b"\n\n")[:events])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that is about to happen."""
        for _ in range(20_000):
            if condition():
                return
            await asyncio.sleep(0.0005)
        raise AssertionError("it never came")

    @property
    def _publisher(self) -> EventPublisher:
        assert self._life is not None
        return self._life[1][0].publisher

    async def _until_subscribed(self) -> None:
        self._heard = 0
        while not await self._sub.poll(5):
            self._publisher._pub.send_multipart([PROBE])
        while await self._sub.poll(20):
            await self._sub.recv_multipart()


@asynccontextmanager
async def running(tokens: Tokens, **settings: Any) -> AsyncIterator[Rig]:
    """A rig whose first life has begun."""
    rig = Rig(tokens, **settings)
    try:
        await rig.start()
        yield rig
    finally:
        await rig.close()
