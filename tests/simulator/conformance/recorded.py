"""Recorded traffic of a real vLLM, read from where it lies."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

Event = dict[str, Any]

STAMP = slice(2, 10)
"""Where a payload has its time: after the array's header and the float's tag."""


class Message(NamedTuple):
    """One multipart message of a KV event socket."""

    frames: list[bytes]

    @property
    def sequence(self) -> int:
        return int.from_bytes(self.frames[-2], "big", signed=True)

    @property
    def events(self) -> list[Event]:
        """The batch's events; none for the end of a replay."""
        if not self.frames[-1]:
            return []
        events: list[Event] = msgspec.msgpack.decode(self.frames[-1])[1]
        return events

    @property
    def timeless(self) -> list[bytes]:
        """The frames with the batch's time blanked."""
        payload = bytearray(self.frames[-1])
        if payload:
            payload[STAMP] = b"\0" * 8
        return [*self.frames[:-1], bytes(payload)]


def read_frames(path: Path) -> list[Message]:
    """Messages of a `.frames` file: for each the number of frames, for each frame its length and bytes."""
    data = path.read_bytes()
    return [Message(list(frames)) for frames in _messages(data)]


def write_frames(path: Path, messages: list[Message]) -> None:
    """The same the other way round."""
    parts = []
    for message in messages:
        parts.append(struct.pack(">I", len(message.frames)))
        parts += [struct.pack(">I", len(frame)) + frame for frame in message.frames]
    path.write_bytes(b"".join(parts))


def _messages(data: bytes) -> Iterator[list[bytes]]:
    place = 0

    def number() -> int:
        nonlocal place
        (value,) = struct.unpack_from(">I", data, place)
        place += 4
        return int(value)

    while place < len(data):
        frames = []
        for _ in range(number()):
            length = number()
            frames.append(data[place : place + length])
            place += length
        yield frames


def stored(messages: list[Message]) -> list[Event]:
    """The full group's BlockStored events, in order."""
    events = [event for message in messages for event in message.events if event["type"] == "BlockStored"]
    return [event for event in events if event["kv_cache_spec_kind"] == "full_attention"]


def tokens(messages: list[Message]) -> list[int]:
    """Token ids of all the full group's stored blocks, one after another."""
    return [token_id for event in stored(messages) for token_id in event["token_ids"]]
