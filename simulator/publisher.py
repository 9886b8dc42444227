"""KV events on ZeroMQ: a PUB socket for what happens, a ROUTER socket for what was missed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec
import zmq
import zmq.asyncio

from simulator.cache import Event

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
HIGH_WATER_MARK = 100_000
LINGER_MS = 200


class EventPublisher:
    """Numbers batches from 0, publishes them and answers replay requests from a bounded buffer.

    A published message is [topic, sequence as 8 bytes big-endian, payload], the payload MessagePack of
    [time, events, data-parallel rank]. A replay request is ["", first sequence as 8 bytes]; its answers are
    ["", topic, sequence, payload] each and ["", "", -1, ""] at the end.
    """

    def __init__(self, topic: str, buffer_steps: int, rank: int = 0) -> None:
        self.sequence = 0
        self.endpoint = ""
        self.replay_endpoint = ""
        self._topic = topic.encode()
        self._rank = rank
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.asyncio.Context()
        self._pub: zmq.Socket[bytes] = zmq.Context(self._context).socket(zmq.PUB)
        self._replay = self._context.socket(zmq.ROUTER)
        self._server: asyncio.Task[None] | None = None
        self.gate: Callable[[Callable[[], None]], None] = lambda send: send()
        """Decides when a batch is sent, and whether."""

    def start(self, host: str, port: int, replay_port: int) -> None:
        """Bind both sockets (port 0: any free one) and serve replay. Raises zmq.ZMQError: a port is taken."""
        self._pub.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._replay.setsockopt(zmq.SNDHWM, 0)
        self.endpoint = _bind(self._pub, host, port)
        self.replay_endpoint = _bind(self._replay, host, replay_port)
        self._server = asyncio.get_running_loop().create_task(self._serve_replay())

    def publish(self, events: list[Event]) -> None:
        """Send one batch; nothing is sent for no events."""
        if not events:
            return
        sequence = self.sequence.to_bytes(8, "big")
        payload = self._encoder.encode([time.time(), events, self._rank])
        self.sequence += 1
        self._buffer.append((sequence, payload))
        self.gate(partial(self._send, sequence, payload))

    def _send(self, sequence: bytes, payload: bytes) -> None:
        if not self._pub.closed:
            self._pub.send_multipart([self._topic, sequence, payload], zmq.NOBLOCK)

    async def close(self) -> None:
        """Stop serving; what is queued gets a moment to leave."""
        if self._server is not None:
            self._server.cancel()
            await asyncio.gather(self._server, return_exceptions=True)
        self._pub.close(linger=LINGER_MS)
        self._replay.close(linger=LINGER_MS)
        self._context.term()

    async def _serve_replay(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) == 3 and len(frames[2]) == 8:
                await self._answer(frames[0], int.from_bytes(frames[2], "big"))

    async def _answer(self, client: bytes, first: int) -> None:
        for sequence, payload in list(self._buffer):
            if int.from_bytes(sequence, "big") >= first:
                await self._replay.send_multipart([client, b"", self._topic, sequence, payload])
        await self._replay.send_multipart([client, b"", b"", END_OF_REPLAY, b""])


def _bind(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, host: str, port: int) -> str:
    """Bind and say where, in the words of a vLLM configuration (`*` for every interface)."""
    where = "*" if host in {"0.0.0.0", "::"} else host
    socket.bind(f"tcp://{where}:{port or '*'}")
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return f"tcp://{where}:{bound.decode().rpartition(':')[2].rstrip(chr(0))}"
