"""Server-sent events off the wire, incrementally and without I/O."""

from __future__ import annotations

MAX_EVENT_BYTES = 64 * 1024 * 1024


class EventTooLargeError(ValueError):
    """A worker sent an event without an end."""


class SseDecoder:
    """Bytes in any cut to the `data` payloads of complete events.

    Comments and other fields are dropped; several `data` lines of one event are joined by a newline
    (WHATWG HTML, section 9.2.6). LF and CRLF line ends are both taken.
    """

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads completed by `chunk`. Raises EventTooLargeError."""
        if chunk.startswith(b"data: ") and not self._tail:
            end = chunk.find(b"\n")
            if end == len(chunk) - 2 and chunk.endswith(b"\n\n"):
                return [chunk[6:end]]  # one event of one line, as a worker's step comes
        data = self._tail + chunk if self._tail else chunk
        if b"\r" in data:
            data, held = (data[:-1], b"\r") if data.endswith(b"\r") else (data, b"")
            data = data.replace(b"\r\n", b"\n")
        else:
            held = b""
        events = data.split(b"\n\n")
        self._tail = events.pop() + held
        if len(self._tail) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        return [payload for event in events if (payload := _payload(event)) is not None]


def _payload(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
