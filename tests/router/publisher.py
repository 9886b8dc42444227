"""A KV event publisher as vLLM and SGLang have it: PUB for what is new, ROUTER for what was."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import msgspec
import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """One life; on ports that the system chose, or on those of an earlier life."""

    def __init__(self, earlier: Publisher | None = None, kept: int = 10_000, topic: bytes = b"kv") -> None:
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.XPUB)
        self.router = self.context.socket(zmq.ROUTER)
        for socket in (self.pub, self.router):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
        self.endpoint: str = earlier.endpoint if earlier else "tcp://127.0.0.1:*"
        self.replay_endpoint: str = earlier.replay_endpoint if earlier else "tcp://127.0.0.1:*"
        self.pub.bind(self.endpoint)
        self.router.bind(self.replay_endpoint)
        self.endpoint = str(self.pub.get_string(zmq.LAST_ENDPOINT))
        self.replay_endpoint = str(self.router.get_string(zmq.LAST_ENDPOINT))
        self.topic = topic
        self.kept = kept
        self.batches: list[bytes] = []
        self.requests: list[int] = []
        self.answering = True
        self._server = asyncio.create_task(self._serve())

    async def subscribed(self) -> None:
        """Return when a subscription has arrived."""
        async with asyncio.timeout(5):
            await self.pub.recv()

    async def publish(self, *events: Any, send: bool = True) -> None:
        """A batch; without `send` it is lost on its way."""
        await self.publish_raw(msgspec.msgpack.encode([time.time(), list(events), 0]), send=send)

    async def publish_raw(self, payload: bytes, *, send: bool = True) -> None:
        number = len(self.batches)
        self.batches.append(payload)
        if send:
            await self.pub.send_multipart([self.topic, number.to_bytes(8, "big"), payload])

    async def _serve(self) -> None:
        while True:
            client, _, start = await self.router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.requests.append(first)
            if not self.answering:
                continue
            numbered = list(enumerate(self.batches))
            for number, payload in numbered[max(first, len(numbered) - self.kept) :]:
                await self.router.send_multipart(
                    [client, b"", self.topic, number.to_bytes(8, "big"), payload]
                )
            await self.router.send_multipart([client, b"", b"", END, b""])

    async def close(self) -> None:
        self._server.cancel()
        with suppress(asyncio.CancelledError):
            await self._server
        self.pub.close()
        self.router.close()
        self.context.term()
