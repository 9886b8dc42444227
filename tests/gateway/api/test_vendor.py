"""Moonshot's contract for Kimi models, rule by rule; P0 to P2 are the priorities of its streaming rules."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tests.gateway.api.conftest import gateway
from tests.gateway.raw_worker import broken_stream, hang_up, status, stream, tokens
from tests.parsers.kimi_k3.material import TOKENIZER, argument, call, segments_of, tools, turn

USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
RUN = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
EITHER = pytest.mark.parametrize("profile", ["default", "kimi-strict"])
"""What holds with the profile and without it."""

Frames = list[dict[str, Any]]


def ids_of(markup: str) -> list[int]:
    return list(map(int, TOKENIZER.encode_segments(segments_of(markup)).ids))


def say(*markups: str) -> Any:
    """An answer of one choice for each markup, a token an event."""
    events: list[Any] = []
    for index, markup in enumerate(markups):
        events += [tokens(each, index=index) for each in ids_of(markup)]
        events.append(tokens(index=index, finish="stop"))
    return stream(*events, USAGE)


ANSWER = turn("Let me see.", "Grüße, 世界 🚀", tools(call("run", argument("n", "x")), call("run")))


async def streamed(answer: Any, profile: str = "default", **fields: Any) -> tuple[Frames, dict[str, str]]:
    async with gateway([answer], profile=profile) as gw:
        response = await gw.chat(stream=True, **{"tools": [RUN], **fields})
        data = (await response.read()).decode()
        assert response.status == 200, data
    lines = [line for line in data.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [msgspec.json.decode(line[6:]) for line in lines], dict(response.headers)


async def refused(profile: str = "default", **fields: Any) -> tuple[int, str | None]:
    async with gateway([say(ANSWER)], profile=profile) as gw:
        response = await gw.chat(**fields)
        body = await response.json()
        return response.status, body["error"]["param"] if response.status != 200 else None


def deltas(frames: Frames) -> list[dict[str, Any]]:
    return [frame["choices"][0]["delta"] for frame in frames if frame["choices"]]


@EITHER
async def test_p0_every_frame_is_whole_and_tells_of_one_choice(profile: str) -> None:
    frames, _ = await streamed(say(ANSWER), profile)
    heads = {tuple((key, frame[key]) for key in ("id", "object", "created", "model")) for frame in frames}
    assert len(heads) == 1
    for frame in frames:
        (choice,) = frame["choices"]
        assert choice.keys() >= {"index", "delta", "finish_reason"}
    assert isinstance(frames[0]["created"], int)
    assert re.fullmatch("chatcmpl-[0-9a-f]{24}", frames[0]["id"])  # P2


@EITHER
async def test_p0_the_first_frame_has_the_role_and_no_other_has(profile: str) -> None:
    first, *others = deltas((await streamed(say(ANSWER), profile))[0])
    assert first == {"role": "assistant", "content": ""}
    assert not any("role" in delta for delta in others)


@EITHER
async def test_p1_a_frame_has_one_kind_of_increment_and_reasoning_ends_with_a_boundary(profile: str) -> None:
    kinds = [
        {"reasoning_content": "reasoning", "content": "content", "tool_calls": "call"}[key]
        if delta[key]
        else "boundary"
        for delta in deltas((await streamed(say(ANSWER), profile))[0])[1:-1]
        for key in delta
    ]
    assert re.fullmatch("(reasoning )+boundary (content )+(call )+", " ".join(kinds) + " ")


async def test_p1_reasoning_that_is_cut_off_ends_with_a_boundary_too() -> None:
    events = [tokens(*ids_of("Let me")), tokens(finish="length"), USAGE]
    assert deltas((await streamed(stream(*events)))[0])[-2:] == [{"reasoning_content": ""}, {}]


async def test_p1_without_reasoning_there_is_no_boundary() -> None:
    frames, _ = await streamed(say("Hello"), thinking={"type": "disabled"})
    assert not any("reasoning_content" in delta for delta in deltas(frames))


@EITHER
async def test_p1_the_end_frame_has_an_empty_delta_the_reason_and_the_usage(profile: str) -> None:
    frames, _ = await streamed(say(ANSWER), profile)
    ends = [frame["choices"][0] for frame in frames if frame["choices"][0]["finish_reason"]]
    assert len(ends) == 1
    assert ends[0] is frames[-1]["choices"][0]
    assert (ends[0]["delta"], ends[0]["finish_reason"]) == ({}, "tool_calls")
    usage = ends[0]["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(ids_of("Let me see."))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == len(ids_of(ANSWER))


@EITHER
async def test_p1_no_other_frame_has_usage_and_p2_nothing_sums_up_unasked(profile: str) -> None:
    frames, _ = await streamed(say(ANSWER), profile)
    assert not any(frame.get("usage") for frame in frames)
    assert not any(frame["choices"][0].get("usage") for frame in frames[:-1])
    assert all(frame["choices"] for frame in frames)


@EITHER
async def test_p0_the_summary_comes_when_asked_for_with_the_numbers_of_the_end_frame(profile: str) -> None:
    frames, _ = await streamed(say(ANSWER), profile, stream_options={"include_usage": True})
    assert frames[-1]["choices"] == []
    assert frames[-1]["id"] == frames[0]["id"]
    assert frames[-1]["usage"] == frames[-2]["choices"][0]["usage"]


async def test_p0_each_choice_ends_with_its_own_usage() -> None:
    frames, _ = await streamed(say("a", "b b b"), n=2, thinking={"type": "disabled"})
    ends = {
        choice["index"]: choice["usage"]["completion_tokens"]
        for frame in frames
        for choice in frame["choices"]
        if choice["finish_reason"]
    }
    assert ends == {0: len(ids_of("a")), 1: len(ids_of("b b b"))}


@EITHER
async def test_p0_a_tool_calls_first_frame_names_it_and_later_ones_only_add_arguments(profile: str) -> None:
    calls = [
        delta["tool_calls"]
        for delta in deltas((await streamed(say(ANSWER), profile))[0])
        if "tool_calls" in delta
    ]
    assert all(len(each) == 1 for each in calls)
    seen: list[int] = []
    for (each,) in calls:
        if each["index"] not in seen:
            seen.append(each["index"])
            assert each.keys() == {"index", "id", "type", "function"}
            assert each["function"] == {"name": "run", "arguments": ""}
            assert re.fullmatch(r"run_\d+", each["id"])  # P2
        else:
            assert each["index"] == seen[-1]
            assert each.keys() == {"index", "function"}
            assert each["function"].keys() == {"arguments"}
    assert seen == [0, 1]
    assert len({each["id"] for (each,) in calls if "id" in each}) == 2


@EITHER
async def test_p0_no_character_is_ever_split(profile: str) -> None:
    found = deltas((await streamed(say(ANSWER), profile))[0])
    text = "".join(delta.get("content", "") for delta in found)
    assert text == "Grüße, 世界 🚀"
    assert not any("\ufffd" in delta.get("content", "") for delta in found)


@EITHER
async def test_p0_internal_content_tells_the_tokens_of_every_increment(profile: str) -> None:
    frames, _ = await streamed(say(ANSWER), profile, stream_options={"include_internal_content": True})
    told: list[int] = []
    for delta in deltas(frames)[1:-1]:
        if any(delta.get(key) for key in ("content", "reasoning_content", "tool_calls")):
            assert delta["internal_content"]["token_ids"]
            told += delta["internal_content"]["token_ids"]
    generated = iter(ids_of(ANSWER))
    assert all(any(each == other for other in generated) for each in dict.fromkeys(told))
    plain, _ = await streamed(say(ANSWER), profile)
    assert not any("internal_content" in delta for delta in deltas(plain))


@EITHER
async def test_p0_what_goes_wrong_before_the_stream_is_a_status(profile: str) -> None:
    async with gateway([status(500)], profile=profile) as gw:
        for fields in ({"model": "none"}, {}):
            response = await gw.chat(stream=True, **fields)
            assert response.status in (404, 502)
            assert (await response.json())["error"].keys() == {"message", "type", "param", "code"}


async def test_p1_a_strict_stream_that_breaks_ends_with_a_reason_instead_of_an_error_frame() -> None:
    broken = broken_stream(*[tokens(each) for each in ids_of("Let me see.")])
    async with gateway([broken, hang_up, hang_up], profile="kimi-strict", continuation_limit=0) as gw:
        lines = (await (await gw.chat(stream=True)).text()).split("\n\n")
    assert lines[-2] == "data: [DONE]"
    end = msgspec.json.decode(lines[-3][6:])["choices"][0]
    assert (end["delta"], end["finish_reason"]) == ({}, "server_interrupted")
    assert not any('"error"' in line for line in lines)


async def test_p0_strict_answers_tell_the_prompts_usage_in_their_head() -> None:
    cached = {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
    answer = stream(cached, tokens(*ids_of(ANSWER)), tokens(finish="stop"), USAGE)
    frames, headers = await streamed(answer, "kimi-strict")
    usage = frames[-1]["choices"][0]["usage"]
    assert headers["X-Msh-Usage-Prompt-Tokens"] == str(usage["prompt_tokens"])
    assert headers["X-Msh-Usage-Cached-Tokens"] == "4"
    async with gateway([answer], profile="kimi-strict") as gw:
        whole = await gw.chat()
        assert whole.headers["X-Msh-Usage-Cached-Tokens"] == "4"
    _, headers = await streamed(answer)
    assert not any(name.startswith("X-Msh") for name in headers)


PINNED = [
    ("temperature", 1.1),
    ("temperature", 0.5),
    ("top_p", 0.8),
    ("presence_penalty", 0.5),
    ("frequency_penalty", 0.5),
    ("n", 2),
]
NAMED = {"type": "function", "function": {"name": "run"}}


@pytest.mark.parametrize(("name", "value"), PINNED)
async def test_sampling_is_pinned_by_the_profile_alone(name: str, value: float) -> None:
    assert await refused("kimi-strict", **{name: value}) == (400, name)
    answer = say(*["x"] * (value if name == "n" else 1))  # type: ignore[operator]
    async with gateway([answer]) as gw:
        assert (await gw.chat(**{name: value})).status == 200


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.6},
        {"temperature": 0},
        {"temperature": 1.0},
        {"top_p": 0.95},
        {"presence_penalty": 0},
        {"frequency_penalty": 0.0},
        {"n": 1},
    ],
)
async def test_the_pinned_values_are_taken(thinking: bool, fields: dict[str, Any]) -> None:
    kind = "enabled" if thinking else "disabled"
    assert await refused("kimi-strict", thinking={"type": kind}, **fields) == (200, None)


@pytest.mark.parametrize(("kind", "temperature"), [("enabled", 1.0), ("disabled", 0.6)])
async def test_the_profile_fills_in_the_vendors_sampling(kind: str, temperature: float) -> None:
    async with gateway([say("x"), say("x")], profile="kimi-strict") as gw:
        await gw.chat(thinking={"type": kind})
        sampling = gw.workers[0].requests[0][1]["sampling_params"]
        assert (sampling["temperature"], sampling["top_p"]) == (temperature, 0.95)
        await gw.post("/v1/completions", {"model": "test/model", "prompt": "x"})
        assert "temperature" not in gw.workers[0].requests[1][1]["sampling_params"]


async def test_a_named_tool_is_refused_by_the_profile_alone() -> None:
    assert await refused("kimi-strict", tools=[RUN], tool_choice=NAMED) == (400, "tool_choice")
    assert await refused(tools=[RUN], tool_choice=NAMED) == (200, None)


@EITHER
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tool_choice": "auto"}, (200, None)),
        ({"tool_choice": "none"}, (200, None)),
        ({"tool_choice": "required"}, (400, "tool_choice")),
        ({"tool_choice": "required", "tools": []}, (400, "tools")),
        ({"tool_choice": "bogus", "tools": [RUN]}, (400, "tool_choice")),
        ({"thinking": {"type": "enabled", "effort": "low", "keep": "all"}}, (200, None)),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "max"}, (200, None)),
        ({"thinking": {"type": "disabled", "effort": "max"}}, (200, None)),
        ({"thinking": {"type": "sometimes"}}, (400, "thinking.type")),
        ({"response_format": {"type": "text"}}, (200, None)),
        ({"response_format": {"type": "yaml"}}, (400, "response_format.type")),
    ],
)
async def test_choices_thinking_and_formats(
    profile: str, fields: dict[str, Any], expected: tuple[int, str | None]
) -> None:
    assert await refused(profile, **fields) == expected


@EITHER
async def test_a_tool_that_only_a_message_declares_can_be_called(profile: str) -> None:
    messages = [
        {"role": "system", "content": "", "tools": [RUN]},
        {"role": "user", "content": "Hi"},
    ]
    async with gateway([say(ANSWER)], profile=profile) as gw:
        body = await (await gw.chat(messages=messages, tool_choice="required")).json()
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert [each["function"]["name"] for each in body["choices"][0]["message"]["tool_calls"]] == [
        "run",
        "run",
    ]
