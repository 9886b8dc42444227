"""Any OpenAI-compatible worker that takes no token ids: the request and its answer pass through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from gateway.engines.connection import ConnectionPool
from gateway.engines.exchange import EventExchange, WholeExchange


class RelaySink(Protocol):
    """Receives a worker's own answer; called inside `data_received`."""

    def on_event(self, payload: bytes) -> None:
        """One event's data, `[DONE]` included."""
        ...

    def flush(self) -> None: ...


LAST_EVENTS = frozenset(
    ("message_stop", "response.completed", "response.incomplete", "response.failed", "error")
)
"""Types of the events that end a stream of events with names."""


class _Typed(msgspec.Struct):
    type: str = ""


def type_of(payload: bytes) -> str:
    """The type that an event's data names; empty when it names none."""
    try:
        return msgspec.json.decode(payload, type=_Typed).type
    except msgspec.DecodeError:
        return ""


class RelayCall(EventExchange):
    """A relayed stream; `named`: of events with names."""

    def __init__(self, sink: RelaySink, *, named: bool = False) -> None:
        super().__init__()
        self._sink = sink
        self._named = named
        self._ended = False
        self.flush = sink.flush

    def handle_event(self, payload: bytes) -> None:
        self._ended = payload == b"[DONE]" or (self._named and type_of(payload) in LAST_EVENTS)
        self._sink.on_event(payload)

    def check_complete(self) -> str | None:
        return None if self._ended else "the worker ended the stream before it was finished"


class OpenAiEngine:
    """One pass-through worker."""

    def __init__(self, url: str) -> None:
        self._pool = ConnectionPool(url)

    async def stream(
        self, path: str, body: bytes, request_id: str, sink: RelaySink, *, named: bool = False
    ) -> RelayCall:
        """Returns when the worker answered 200. Raises EngineError."""
        call = RelayCall(sink, named=named)
        await call.open(self._pool, path, [body], _headers(request_id))
        return call

    async def whole(self, path: str, body: bytes, request_id: str) -> bytes:
        """The worker's whole answer. Raises EngineError."""
        return await WholeExchange().fetch(self._pool, path, [body], _headers(request_id))

    def close(self) -> None:
        self._pool.close()


def _headers(request_id: str) -> Mapping[str, str]:
    return {"X-Request-Id": request_id}
