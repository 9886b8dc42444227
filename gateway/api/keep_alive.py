"""Comments in a stream that has nothing to say, so that no proxy on the way takes it for dead."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.api.stream_response import ClientWriter, EventStreamResponse

COMMENT = b": keep-alive\n\n"
_TICKS = 3


class KeepAlive:
    """Of one streamed answer.

    Without an event for `seconds` the status 200 goes out with a comment, and comments follow; errors are
    then frames of the stream. Once `writer` is set, comments fill its silences. One timer serves it all.
    """

    def __init__(self, response: EventStreamResponse, seconds: float) -> None:
        """0 seconds: never."""
        self.writer: ClientWriter | None = None
        self._response = response
        self._interval = seconds / _TICKS
        self._idle = 0
        self._taken = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._interval, self._tick) if seconds else None
        self._writing: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()

    async def committed(self) -> bool:
        """Whether the response's headers have gone out; no comment goes on its own from now on."""
        self._taken = True
        if self._writing is None:
            return False
        with contextlib.suppress(ConnectionError):
            await self._writing
        return True

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._tick)
        if self.writer is not None:
            self._idle = self.writer.idle = self.writer.idle + 1
        else:
            self._idle += 1
        if self._idle < _TICKS or (self._writing is not None and not self._writing.done()):
            return
        self._idle = 0
        if self.writer is not None:
            self.writer.comment(COMMENT)
        elif not self._taken:
            self._writing = self._loop.create_task(self._comment())

    async def _comment(self) -> None:
        await self._response.prepare(self._response.request)
        await self._response.write(COMMENT)
