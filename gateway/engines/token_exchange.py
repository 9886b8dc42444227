"""A streamed exchange that feeds a TokenSink from inside the connection's `data_received`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.engines.base import EngineError, TokenSink
from gateway.engines.exchange import EventExchange
from gateway.engines.worker_message import clean


class StreamedError(msgspec.Struct):
    """An event that says that the generation failed."""

    message: str = "the worker reported an error"
    code: int | str | None = None


def stream_error(error: StreamedError | str) -> EngineError:
    if isinstance(error, str):
        return EngineError(clean(error))
    status = error.code if isinstance(error.code, int) else None
    return EngineError(clean(error.message), status=status, retryable=status is None or status >= 500)


class TokenExchange(EventExchange):
    """One generation. Subclasses say what an event means; [DONE] after the last finish makes it whole."""

    def __init__(self, sink: Callable[[], TokenSink]) -> None:
        super().__init__()
        self._make_sink: Callable[[], TokenSink] | None = sink
        self._sink: TokenSink | None = None
        self._finished = False
        self._ended = False

    def handle_sent(self) -> None:
        if self._make_sink is not None:
            self._sink, self._make_sink = self._make_sink(), None
            self.flush = self._sink.flush

    def check_complete(self) -> str | None:
        if self._finished and self._ended:
            return None
        return "the worker ended the stream before it was finished"
