"""`kvgateway demo --check`: one line a step, with what it proved."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec

from gateway.demo.checks import StepFailedError, require, user
from gateway.demo.client import TIMEOUT, DemoClient, Json, RequestFailedError, WorkerCounters
from gateway.demo.handoff_steps import (
    equal_step,
    holder_step,
    long_step,
    spread_step,
    transfer_step,
    violations_step,
)
from gateway.demo.launcher import MODEL, DemoFleet, Say

QUESTION = "What does a gateway do with 日本 and ✓?"
WEATHER: Json = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
        },
        "required": ["city", "days", "unit"],
        "additionalProperties": False,
    },
}

LOAD_STREAMS = 3
LOAD_ATTEMPTS = 12
LOAD_SCRIPT = {"script_ids": [104] * 5000, "delay_ms": 50}
REPEATS = 4
SHORT = 8
WORDS_PER_HALF = 2500
CACHED_SHARE = 0.9
"""Of a repeat's prompt: all but its own question."""
IDLE_SECONDS = 10.0


Counters = Mapping[str, WorkerCounters]
Step = Callable[[DemoClient], Awaitable[str]]


async def tour(fleet: DemoFleet, say: Say) -> bool:
    """Take the steps one after another; True when every one proved its point."""
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        client = DemoClient(session, fleet.url, fleet.workers, MODEL)
        steps = STEPS if fleet.aggregated else (*STEPS[:3], *PAIR_STEPS)
        if fleet.decode_workers > 1:
            steps = (*steps, ("decode", spread_step))
        if not fleet.aggregated:
            steps = (*steps, ("long prompt", long_step), ("violations", violations_step))
        passed = [await _take(name, step, client, say) for name, step in steps]
    return all(passed)


async def _take(name: str, step: Step, client: DemoClient, say: Say) -> bool:
    try:
        say(f"ok    {name}: {await step(client)}")
    except (StepFailedError, RequestFailedError, aiohttp.ClientError, TimeoutError, KeyError) as error:
        say(f"FAIL  {name}: {error if str(error) else type(error).__name__}")
        return False
    return True


async def answer_step(client: DemoClient) -> str:
    """A whole answer has reasoning and content, apart."""
    answer = await client.chat(user(QUESTION))
    message, usage = answer["choices"][0]["message"], answer["usage"]
    reasoning, content = message.get("reasoning_content"), message.get("content")
    require(bool(reasoning), f"no reasoning_content in {message}")
    require(bool(content) and "<|" not in content + reasoning, f"bad content in {message}")
    require(answer["choices"][0]["finish_reason"] == "stop", f"finish_reason in {answer['choices'][0]}")
    counts = f"{usage['prompt_tokens']} prompt and {usage['completion_tokens']} output tokens"
    return f"{len(reasoning)} characters of reasoning, {len(content)} of content, {counts}"


async def stream_step(client: DemoClient) -> str:
    """The same question streamed gives the same text, its usage and [DONE]."""
    whole = await client.chat(user(QUESTION))
    message = whole["choices"][0]["message"]
    streamed = await client.streamed_answer(user(QUESTION))
    require(streamed.reasoning == message["reasoning_content"], f"reasoning differs: {streamed.reasoning!r}")
    require(streamed.content == message["content"], f"content differs: {streamed.content!r}")
    require(streamed.finish_reason == "stop", f"finish_reason {streamed.finish_reason!r}")
    require(streamed.done, "no [DONE]")
    require(streamed.usage is not None, "no usage chunk")
    assert streamed.usage is not None
    tokens = streamed.usage["completion_tokens"]
    require(tokens == whole["usage"]["completion_tokens"], f"usage differs: {streamed.usage}")
    return f"{streamed.chunks} chunks, the same text as in one piece, usage of {tokens} tokens, [DONE]"


async def tool_step(client: DemoClient) -> str:
    """A declared tool is called with arguments that fit its schema."""
    tools = [{"type": "function", "function": WEATHER}]
    answer = await client.chat(user("Oslo"), tools=tools)
    choice = answer["choices"][0]
    require(choice["finish_reason"] == "tool_calls", f"finish_reason {choice['finish_reason']!r}")
    calls = choice["message"].get("tool_calls") or []
    require(len(calls) == 1, f"{len(calls)} calls")
    function = calls[0]["function"]
    require(function["name"] == WEATHER["name"], f"it called {function['name']!r}")
    problem = _misfit(msgspec.json.decode(function["arguments"]), WEATHER["parameters"])
    require(problem is None, f"{function['arguments']}: {problem}")
    return f"{function['name']}({function['arguments']}) fits its schema, id {calls[0]['id']}"


async def prefix_step(client: DemoClient) -> str:
    """A repeated prefix goes to the worker that holds it although that worker is the busier one."""
    first, second = _halves()
    before = await client.counters()
    await client.chat(_shared(first, second, "How does it begin?"), max_tokens=SHORT)
    holder, held = _grown(before, await client.counters())
    async with AsyncExitStack() as streams:
        await _make_busier(client, holder, first, streams)
        loads = {name: one.running for name, one in (await client.counters()).items()}
        cached = await _repeat(client, holder, first, second)
    await _until_idle(client)
    others = sum(loads.values()) - loads[holder]
    return (
        f"{REPEATS} of {REPEATS} repeats went to {holder}, the busier one ({loads[holder]} streams against "
        f"{others}), with {cached} of {held} tokens cached"
    )


async def _make_busier(client: DemoClient, holder: str, first: str, streams: AsyncExitStack) -> None:
    """Keep slow streams open on the holder alone. Their prompts share half of the prefix, so that the half
    that only the repeats have stays where it is; a stream that went elsewhere is closed again."""
    placed = 0
    for attempt in range(LOAD_ATTEMPTS):
        if placed == LOAD_STREAMS:
            return
        before = (await client.counters())[holder].running
        async with AsyncExitStack() as one:
            messages = [{"role": "system", "content": first}, *user(f"Count slowly, {attempt}.")]
            events = await one.enter_async_context(client.stream(messages, vllm_xargs=LOAD_SCRIPT))
            await anext(events)
            if (await client.counters())[holder].running > before:
                streams.push_async_exit(one.pop_all())
                placed += 1
    require(placed == LOAD_STREAMS, f"only {placed} of {LOAD_STREAMS} streams could be placed on {holder}")


async def _repeat(client: DemoClient, holder: str, first: str, second: str) -> int:
    """Repeat the prefix, each time with another question. The fewest cached tokens."""
    before = await client.counters()
    tokens: list[tuple[int, int]] = []
    for number in range(REPEATS):
        answer = await client.chat(_shared(first, second, f"Question {number}?"), max_tokens=SHORT)
        usage = answer["usage"]
        tokens.append((usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]))
    after = await client.counters()
    served = {name: after[name].finished - before[name].finished for name in after}
    shown = ", ".join(f"{cached} of {prompt}" for cached, prompt in tokens)
    others = {name: count for name, count in served.items() if name != holder and count}
    astray = f"{others} of {REPEATS} repeats went elsewhere (cached tokens: {shown})"
    require(not others, f"{holder} holds the prefix, but {astray}")
    require(served[holder] == REPEATS, f"{holder} counted {served[holder]} of {REPEATS} repeats")
    require(all(cached >= CACHED_SHARE * prompt for cached, prompt in tokens), f"cached tokens: {shown}")
    return min(cached for cached, _ in tokens)


async def _until_idle(client: DemoClient) -> None:
    """The closed streams must not go on in the workers."""
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            running = True
            while running:
                await asyncio.sleep(0.05)
                running = any(one.running for one in (await client.counters()).values())
    except TimeoutError:
        raise StepFailedError("the workers go on with streams that the client closed") from None


def _grown(before: Counters, after: Counters) -> tuple[str, int]:
    """The one worker that took a prompt in, and its tokens."""
    grown = {name: after[name].prompt_tokens - before[name].prompt_tokens for name in after}
    took = [name for name, tokens in grown.items() if tokens]
    require(len(took) == 1, f"one prompt reached {took or 'no worker'}")
    return took[0], grown[took[0]]


def _halves() -> tuple[str, str]:
    """Two long texts, the same on every run."""
    words = random.Random(0)
    halves = [" ".join(f"{words.randrange(10**6):06d}" for _ in range(WORDS_PER_HALF)) for _ in range(2)]
    return halves[0], halves[1]


def _shared(first: str, second: str, question: str) -> list[Json]:
    return [{"role": "system", "content": first}, *user(second), *user(question)]


def _misfit(value: Any, schema: Json) -> str | None:
    """What keeps an object from fitting the tour's own schema; None when nothing does."""
    types = {"string": str, "integer": int}
    if not isinstance(value, dict):
        return "not an object"
    if missing := set(schema["required"]) - set(value):
        return f"{sorted(missing)} missing"
    if extra := set(value) - set(schema["properties"]):
        return f"{sorted(extra)} not declared"
    for name, item in value.items():
        declared = schema["properties"][name]
        if not isinstance(item, types[declared["type"]]) or item not in declared.get("enum", [item]):
            return f"{name} is {item!r}"
    return None


STEPS: tuple[tuple[str, Step], ...] = (
    ("answer", answer_step),
    ("stream", stream_step),
    ("tool call", tool_step),
    ("prefix", prefix_step),
)
PAIR_STEPS: tuple[tuple[str, Step], ...] = (
    ("transfer", transfer_step),
    ("equal", equal_step),
    ("prefix", holder_step),
)
