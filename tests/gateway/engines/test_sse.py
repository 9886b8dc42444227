"""Event-stream decoding, fed whole and in every cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines import sse
from gateway.engines.sse import EventTooLargeError, SseDecoder

STREAM = b'data: {"a":1}\n\n: keep-alive\n\nevent: x\ndata: one\ndata: two\n\ndata:bare\n\ndata: [DONE]\n\n'
PAYLOADS = [b'{"a":1}', b"one\ntwo", b"bare", b"[DONE]"]


def decode(pieces: list[bytes]) -> list[bytes]:
    decoder = SseDecoder()
    return [payload for piece in pieces for payload in decoder.feed(piece)]


@pytest.mark.parametrize("stream", [STREAM, STREAM.replace(b"\n", b"\r\n")], ids=["lf", "crlf"])
def test_a_stream_gives_the_same_payloads_byte_by_byte_as_whole(stream: bytes) -> None:
    assert decode([stream]) == PAYLOADS
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == PAYLOADS


@given(cuts=st.sets(st.integers(0, len(STREAM) * 2)), crlf=st.booleans())
def test_any_cut_gives_the_same_payloads(cuts: set[int], crlf: bool) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    bounds = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(bounds)]
    assert decode(pieces) == PAYLOADS


@pytest.mark.parametrize("end", [b"\n", b"\nx", b"x\n", b"\r\n", b"\r\n\r\n", b"\n\n\n"])
def test_an_event_that_comes_alone_is_read_like_any_other(end: bytes) -> None:
    event = b'data: {"a":1}' + end
    assert decode([event, b"\n\n"]) == decode([event + b"\n\n"])
    assert decode([b'data: {"a":1}\n\n']) == [b'{"a":1}']


def test_an_event_without_an_end_gives_nothing() -> None:
    assert decode([b"data: half"]) == []


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    decoder = SseDecoder()
    for _ in range(7):
        decoder.feed(b"data: xxxxxxxx")
    with pytest.raises(EventTooLargeError, match="100 bytes"):
        decoder.feed(b"data: xxxxxxxx")


def test_a_long_event_in_small_reads_is_joined_once() -> None:
    decoder = SseDecoder()
    reads = [b"data: ", *[b"x" * 1024] * 16_384, b"\n", b"\n"]
    assert [payload for read in reads for payload in decoder.feed(read)] == [b"x" * 1024 * 16_384]
