"""How probes are told what to do: MessagePack frames over TCP, one question a connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from fabric.agent import Agent, Hello, ProbeError
from fabric.results import Timing

logger = logging.getLogger(__name__)

MAX_FRAME = 1 << 20
HEADER = 4
HELLO_SECONDS = 5.0


class Question(msgspec.Struct, frozen=True):
    """`peer` None: who are you? Else: HOST:PORT of the probe to read from."""

    peer: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """One of these, by the question."""

    error: str | None = None
    hello: Hello | None = None
    transport: str = ""
    timings: Sequence[Timing] = ()


class ProbeServer:
    """Answers for one agent."""

    def __init__(self, agent: Agent, hello: Hello) -> None:
        self._agent = agent
        self._hello = hello
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """The port. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = msgspec.msgpack.decode(await _receive(reader), type=Question)
            _send(writer, msgspec.msgpack.encode(await self._answer(question)))
            await writer.drain()
        except (OSError, EOFError, msgspec.DecodeError) as error:
            logger.warning("a question that cannot be read: %s", error)
        finally:
            writer.close()

    async def _answer(self, question: Question) -> Answer:
        if question.peer is None:
            return Answer(hello=self._hello)
        try:
            peer = await ask(question.peer, Question(), HELLO_SECONDS)
            if peer.hello is None:
                raise ProbeError(f"{question.peer} does not say who it is")
            transport, timings = await self._agent.measure(peer.hello)
            return Answer(transport=transport, timings=timings)
        except ProbeError as error:
            return Answer(error=str(error))


async def ask(address: str, question: Question, seconds: float) -> Answer:
    """The answer of the probe at HOST:PORT. Raises ProbeError, within that many seconds."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                _send(writer, msgspec.msgpack.encode(question))
                answer = msgspec.msgpack.decode(await _receive(reader), type=Answer)
            finally:
                writer.close()
    except TimeoutError:
        raise ProbeError(f"{address}: no answer within {seconds:g} s") from None
    except (OSError, EOFError, ValueError) as error:
        raise ProbeError(f"{address}: {error or type(error).__name__}") from None
    if answer.error is not None:
        raise ProbeError(answer.error)
    return answer


def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(HEADER, "big") + frame)


async def _receive(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(HEADER), "big")
    if size > MAX_FRAME:
        raise EOFError(f"a frame of {size} bytes")
    return await reader.readexactly(size)
