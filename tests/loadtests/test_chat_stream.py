"""What counts as a good stream, and what an event says."""

from __future__ import annotations

import pytest

from loadtests.chat_stream import StreamError, payloads, text_of


def test_events_up_to_done() -> None:
    lines = [
        b'data: {"a":1}',
        b"",
        b": comment",
        b'data: {"a":2}',
        b"",
        b"data: [DONE]",
        b"",
        b'data: {"a":3}',
    ]
    assert [event["a"] for event in payloads(lines)] == [1, 2]


def test_a_stream_without_done_is_an_error_after_its_events() -> None:
    events = payloads([b'data: {"a":1}'])
    assert next(events) == {"a": 1}
    with pytest.raises(StreamError, match="without"):
        next(events)


def test_an_error_event_is_an_error() -> None:
    with pytest.raises(StreamError, match="worker failed"):
        list(payloads([b'data: {"error":{"message":"worker failed"}}', b"data: [DONE]"]))


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"role": "assistant", "content": ""}, ""),
        ({"reasoning_content": "hm"}, "hm"),
        ({"content": "yes"}, "yes"),
        ({"content": None, "tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}, "{}"),
        ({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, ""),
        ({}, ""),
    ],
)
def test_text_of_an_event(delta: dict[str, object], text: str) -> None:
    assert text_of({"choices": [{"index": 0, "delta": delta}]}) == text


def test_a_usage_event_says_nothing() -> None:
    assert text_of({"choices": [], "usage": {}}) == ""
