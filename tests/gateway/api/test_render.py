"""Events to OpenAI's chunks and bodies."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.api.chat_details import chat_stream
from gateway.api.chat_render import ChatStream, ChatWhole
from gateway.api.completion_render import CompletionStream, CompletionWhole
from gateway.api.head import Head
from gateway.api.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from gateway.serving.errors import bad_request
from gateway.serving.job import Details
from gateway.serving.token_watch import TokenDetail
from parsers.base import ContentDelta, Finish, ReasoningDelta, ToolArgumentsDelta, ToolCallStart

HEAD = Head(id="c", created=7, model="m", choices=1, prompt_tokens=3)
USAGE = Usage(3, 2, 5, PromptTokensDetails(1), CompletionTokensDetails(1))


class Parser:
    """Nothing to take back."""

    reasoning_retracted = False
    incomplete_calls: tuple[int, ...] = ()


PARSERS: Any = [Parser()]
EVENTS = [
    ReasoningDelta('a"\n'),
    ContentDelta("é\u2028"),
    ToolCallStart(0, "id1", "f"),
    ToolArgumentsDelta(0, '{"x":'),
    ToolArgumentsDelta(0, "1}"),
    Finish("tool_calls"),
]


def frames(data: bytes) -> list[Any]:
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    assert parts.pop() == "data: [DONE]"
    return [msgspec.json.decode(part[6:]) for part in parts]


def test_a_chat_stream_has_one_kind_of_increment_a_frame_between_a_role_and_a_finish_frame() -> None:
    stream = ChatStream("chatcmpl-1", 7, 'm"x')
    stream.emit(0, EVENTS)
    chunks = frames(stream.end(1, None))
    for chunk in chunks:
        assert {key: chunk[key] for key in ("id", "object", "created", "model")} == {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 7,
            "model": 'm"x',
        }
        assert chunk["choices"][0].keys() == {"index", "delta", "finish_reason"}
    call = {"index": 0, "id": "id1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": 'a"\n'},
        {"reasoning_content": ""},
        {"content": "é\u2028"},
        {"tool_calls": [call]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 7 + ["tool_calls"]


def test_usage_comes_in_a_last_chunk_without_choices_when_asked_for() -> None:
    stream = ChatStream("c", 7, "m")
    last = frames(stream.end(1, USAGE))[-1]
    assert last["choices"] == []
    assert last["usage"] == msgspec.to_builtins(USAGE)


def test_choices_of_one_stream_are_told_apart_by_index() -> None:
    stream = ChatStream("c", 7, "m")
    stream.emit(1, [ContentDelta("b")])
    stream.emit(0, [ContentDelta("a")])
    chunks = frames(stream.end(2, None))
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [1, 1, 0, 0, 0, 1]


def test_rendered_frames_are_handed_out_once_a_read() -> None:
    stream, written = ChatStream("c", 7, "m"), list[bytes]()
    stream.emit(0, [ContentDelta("a")])
    first = stream.take()
    stream.write = written.append
    stream.emit(0, [ContentDelta("b"), ContentDelta("c")])
    stream.flush()
    stream.flush()
    assert first.count(b"data: ") == 2
    assert [data.count(b"data: ") for data in written] == [2]


def test_a_broken_stream_ends_in_an_error_frame_and_done() -> None:
    stream = ChatStream("c", 7, "m")
    stream.emit(0, [ContentDelta("a")])
    assert frames(stream.fail(bad_request("x")))[-1]["error"]["message"] == "x"


def test_a_whole_chat_joins_its_pieces() -> None:
    whole = ChatWhole(msgspec.structs.replace(HEAD, choices=2))
    whole.emit(0, EVENTS)
    whole.emit(1, [Finish("length")])
    body = msgspec.json.decode(whole.body(USAGE, PARSERS * 2))
    call = {"id": "id1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "é\u2028",
        "reasoning_content": 'a"\n',
        "tool_calls": [call],
    }
    assert [choice["finish_reason"] for choice in body["choices"]] == ["tool_calls", "length"]
    assert body["choices"][1]["message"]["content"] == ""
    assert body["usage"] == msgspec.to_builtins(USAGE)


def test_a_message_of_tool_calls_alone_has_null_content() -> None:
    whole = ChatWhole(HEAD)
    whole.emit(0, [ToolCallStart(0, "i", "f")])
    assert msgspec.json.decode(whole.body(USAGE, PARSERS))["choices"][0]["message"]["content"] is None


def test_completions_render_text_alone() -> None:
    stream, whole = CompletionStream(HEAD), CompletionWhole(HEAD)
    for renderer in (stream, whole):
        renderer.emit(0, [ContentDelta("a"), ContentDelta("b"), Finish("length")])
    chunks = frames(stream.end(1, USAGE))
    assert [chunk["choices"][0]["text"] for chunk in chunks[:-1]] == ["a", "b", ""]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    choice = msgspec.json.decode(whole.body(USAGE, PARSERS))["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")


def test_a_whole_chat_leaves_out_what_its_parser_takes_back() -> None:
    whole, parser = ChatWhole(HEAD), Parser()
    parser.reasoning_retracted, parser.incomplete_calls = True, (1,)
    events = [ReasoningDelta("x"), ContentDelta("x"), ToolCallStart(0, "a", "f"), ToolCallStart(1, "b", "g")]
    whole.emit(0, [*events, Finish("length")])
    message = msgspec.json.decode(whole.body(USAGE, [parser]))["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert [call["id"] for call in message["tool_calls"]] == ["a"]


def token(text: str, value: float = -0.5) -> TokenDetail:
    spelling = text.encode()
    return TokenDetail(ord(text[0]), spelling, value, [(spelling, value), (b"\xe4", -2.0)])


def detailed(logprobs: int | None = None, usage: bool = False) -> Head:
    return msgspec.structs.replace(HEAD, details=Details(logprobs=logprobs, usage=usage))


def test_log_probabilities_go_with_the_chunk_that_their_tokens_made_and_the_rest_with_the_last() -> None:
    stream = chat_stream(detailed(logprobs=2))
    for text, events in (("<", []), ("a", [ContentDelta("a")]), ("b", [ContentDelta("b")]), (">", [])):
        stream.on_token(0, token(text))
        stream.emit(0, events)
    stream.emit(0, [Finish("stop")])
    choices = [chunk["choices"][0] for chunk in frames(stream.end(1, None))]
    names = [[e["token"] for e in c["logprobs"]["content"]] if c.get("logprobs") else None for c in choices]
    assert names == [None, ["<", "a"], ["b"], [">"]]
    assert choices[1]["logprobs"]["content"][1] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "\ufffd", "logprob": -2.0, "bytes": [0xE4]},
        ],
    }
    assert [c["delta"] for c in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]


def test_continuous_usage_is_on_every_chunk_and_grows() -> None:
    stream = chat_stream(detailed(usage=True))
    for text in "ab":
        stream.on_token(0, token(text))
        stream.emit(0, [ContentDelta(text)])
    *chunks, last = frames(stream.end(1, USAGE))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 2]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {3}
    assert last["choices"] == []


def test_completion_log_probabilities_are_parallel_lists_with_offsets_into_the_text() -> None:
    head = detailed(logprobs=1)
    stream, whole = CompletionStream(head), CompletionWhole(head)
    for renderer in (stream, whole):
        for text in ("ab", "é", "c"):
            renderer.on_token(0, token(text))
            renderer.emit(0, [ContentDelta(text)])
    logprobs = whole.choices()[0]["logprobs"]
    assert logprobs["tokens"] == ["ab", "é", "c"]
    assert logprobs["text_offset"] == [0, 2, 3]
    assert logprobs["top_logprobs"][0] == {"ab": -0.5}
    chunks = frames(stream.end(1, None))
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks] == [[0], [2], [3], []]


def test_half_a_character_is_named_by_its_bytes_in_a_completion() -> None:
    whole = CompletionWhole(detailed(logprobs=2))
    whole.on_token(0, TokenDetail(1, b"\xe4", -1.0, [(b"\xe4", -1.0), (b"\xe5", -3.0)]))
    whole.on_token(0, TokenDetail(2, b"\xbd\xa0!", -1.0))
    logprobs = whole.choices()[0]["logprobs"]
    assert logprobs["top_logprobs"][0] == {"bytes:\\xe4": -1.0, "bytes:\\xe5": -3.0}
    assert logprobs["text_offset"] == [0, 0]


def test_what_stopped_an_answer_is_said_beside_its_finish_reason() -> None:
    stream, whole = chat_stream(HEAD), ChatWhole(HEAD)
    for renderer in (stream, whole):
        renderer.emit(0, [ContentDelta("a"), Finish("stop", "END")])
    assert frames(stream.end(1, None))[-1]["choices"][0]["stop_reason"] == "END"
    assert msgspec.json.decode(whole.body(USAGE, PARSERS))["choices"][0]["stop_reason"] == "END"
