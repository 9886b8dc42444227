"""Server-sent events off the wire, incrementally and without I/O."""

from __future__ import annotations

MAX_EVENT_BYTES = 64 * 1024 * 1024
_EDGE = 2
"""Bytes of an event's end, `\\n\\r\\n` at the longest, that an earlier read may have brought."""


class EventTooLargeError(ValueError):
    """A worker sent an event without an end."""


class SseDecoder:
    """Bytes in any cut to the `data` payloads of complete events.

    Comments and other fields are dropped; several `data` lines of one event are joined by a newline
    (WHATWG HTML, section 9.2.6). LF and CRLF line ends are both taken.
    """

    __slots__ = ("_edge", "_held", "_parts", "_tail")

    def __init__(self) -> None:
        self._tail = b""
        """What the last read left of an event."""
        self._parts: list[bytes] = []
        """What has come since and did not end it: joined once, so that a long event costs what it is long."""
        self._held = 0
        """Bytes of both."""
        self._edge = b""
        """The last of them, in which an end may have begun."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads completed by `chunk`. Raises EventTooLargeError."""
        if chunk.startswith(b"data: ") and not self._tail:
            end = chunk.find(b"\n")
            if end == len(chunk) - 2 and chunk.endswith(b"\n\n"):
                return [chunk[6:end]]  # one event of one line, as a worker's step comes
        if self._tail:
            edge = self._edge + chunk
            if b"\n\n" not in edge and b"\n\r\n" not in edge:
                return self._hold(chunk, edge)
            data = b"".join((self._tail, *self._parts, chunk))
            self._parts = []
        else:
            data = chunk
        if b"\r" in data:
            data, held = (data[:-1], b"\r") if data.endswith(b"\r") else (data, b"")
            data = data.replace(b"\r\n", b"\n")
        else:
            held = b""
        events = data.split(b"\n\n")
        self._tail = events.pop() + held
        self._held, self._edge = len(self._tail), self._tail[-_EDGE:]
        self._check_size()
        return [payload for event in events if (payload := _payload(event)) is not None]

    def _hold(self, chunk: bytes, edge: bytes) -> list[bytes]:
        self._parts.append(chunk)
        self._held += len(chunk)
        self._edge = edge[-_EDGE:]
        self._check_size()
        return []

    def _check_size(self) -> None:
        if self._held > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an event is larger than {MAX_EVENT_BYTES} bytes")


def _payload(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
