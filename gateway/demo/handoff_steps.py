"""The tour's steps for prefill and decode apart: bytes, the same answer, placement, a very long prompt."""

from __future__ import annotations

import asyncio
import time

from gateway.demo.checks import StepFailedError, require, user
from gateway.demo.client import DemoClient, WorkerState

QUESTION = "Which blocks does this answer come from? " + "A longer prompt fills more of them. " * 40
LONG_WORDS = 1_000_000
LONG_TOKENS = 8
PACE_STREAM = {"script_ids": [104] * 100_000, "delay_ms": 20}
PACE_SECONDS = 2.0
KEPT_SHARE = 0.5
"""Of its usual tokens a second, what a stream beside the long prompt must still get."""
SPREAD = 6
REPEATS = 3
CACHED_SHARE = 0.9


async def transfer_step(client: DemoClient) -> str:
    """A prompt's KV blocks go from a prefill worker to a decode worker, all of their bytes."""
    before = await client.states()
    await client.chat(user(QUESTION), max_tokens=LONG_TOKENS)
    after = await client.states()
    moved = {name: after[name].transferred_bytes - before[name].transferred_bytes for name in after}
    readers = [name for name, count in moved.items() if count > 0]
    require(len(readers) == 1, f"bytes were read by {readers or 'no worker'}")
    reader = after[readers[0]]
    require(reader.role == "decode", f"{readers[0]} read the blocks, a {reader.role} worker")
    pinned = await _unpinned(client)
    require(pinned == 0, f"{pinned} requests' blocks are still pinned")
    count = f"{moved[readers[0]]:.0f} bytes"
    return f"{count} read by {readers[0]}, transport {reader.transport}, nothing left pinned"


async def equal_step(client: DemoClient) -> str:
    """The answer is the one that a single worker gives; it names a word made of the blocks' bytes."""
    pair = (await client.chat(user(QUESTION)))["choices"][0]["message"]
    name = next(name for name, state in (await client.states()).items() if state.role == "prefill")
    alone = (await client.chat_with(name, user(QUESTION)))["choices"][0]["message"]
    require(pair["content"] == alone["content"], f"{pair['content']!r} is not {alone['content']!r}")
    reasoning = pair["reasoning_content"]
    require(reasoning == alone["reasoning"], f"{reasoning!r} is not {alone['reasoning']!r}")
    return f"disaggregated equals {name} alone, to the word that the KV bytes spell ({reasoning.split()[-1]})"


async def holder_step(client: DemoClient) -> str:
    """A repeated prefix is prefilled where it is held; the cached tokens are those of the prefill leg."""
    shared = user("Prefix. " + "Some words that every repeat begins with. " * 120)
    before = await client.counters()
    await client.chat([*shared, *user("First?")], max_tokens=LONG_TOKENS)
    middle = await client.counters()
    cached = []
    for number in range(REPEATS):
        answer = await client.chat([*shared, *user(f"Repeat {number}?")], max_tokens=LONG_TOKENS)
        usage = answer["usage"]
        cached.append((usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]))
    after = await client.counters()
    prefill = [name for name, state in (await client.states()).items() if state.role == "prefill"]
    holders = [name for name in prefill if middle[name].finished > before[name].finished]
    require(len(holders) == 1, f"the first prompt was prefilled by {holders or 'no worker'}")
    served = after[holders[0]].finished - middle[holders[0]].finished
    require(served == REPEATS, f"{holders[0]} prefilled {served} of {REPEATS} repeats")
    shown = ", ".join(f"{one} of {all_}" for one, all_ in cached)
    require(all(one >= CACHED_SHARE * all_ for one, all_ in cached), f"cached tokens: {shown}")
    return f"{REPEATS} of {REPEATS} repeats prefilled by {holders[0]}, which holds the prefix; cached {shown}"


async def spread_step(client: DemoClient) -> str:
    """Answers that go on at once are shared out among the decode workers."""
    before = await client.counters()
    prompts = [user(f"Number {number}") for number in range(SPREAD)]
    await asyncio.gather(*(client.chat(prompt, max_tokens=40) for prompt in prompts))
    after = await client.counters()
    decode = [name for name, state in (await client.states()).items() if state.role == "decode"]
    served = {name: after[name].finished - before[name].finished for name in decode}
    require(sum(served.values()) == SPREAD, f"{served} for {SPREAD} answers")
    require(all(served.values()), f"not every decode worker was used: {served}")
    return "decode legs " + ", ".join(f"{name}: {count}" for name, count in served.items())


async def long_step(client: DemoClient) -> str:
    """A prompt of a million tokens goes through while another client's stream keeps its pace."""
    pace = _Pace()
    stream = asyncio.create_task(_keep_reading(client, pace))
    try:
        await asyncio.sleep(PACE_SECONDS)
        usual = pace.mark()
        require(usual > 0, "the second client's stream does not run")
        started = time.monotonic()
        answer = await client.chat(user(" the" * LONG_WORDS), max_tokens=LONG_TOKENS)
        seconds = time.monotonic() - started
        beside, gap = pace.mark(), pace.largest_gap
    finally:
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
    prompt = answer["usage"]["prompt_tokens"]
    require(prompt >= LONG_WORDS, f"the prompt had {prompt} tokens")
    require(beside >= KEPT_SHARE * usual, f"{beside:.0f} tokens/s beside it, {usual:.0f} without")
    return (
        f"{prompt} tokens in {seconds:.1f} s; the other stream got {beside:.0f} tokens/s ({usual:.0f} "
        f"without it), its longest pause {gap * 1000:.0f} ms"
    )


async def violations_step(client: DemoClient) -> str:
    """No worker ever computed with a block that was not its prompt's."""
    violations = {name: state.violations for name, state in (await client.states()).items()}
    require(not any(violations.values()), f"sim_kv_violations {violations}")
    return f"sim_kv_violations 0 on {len(violations)} workers"


class _Pace:
    """Tokens a second since the last mark, and the longest pause since then."""

    def __init__(self) -> None:
        self.largest_gap = 0.0
        self._tokens = 0
        self._since = self._last = time.monotonic()

    def token(self) -> None:
        now = time.monotonic()
        self.largest_gap = max(self.largest_gap, now - self._last)
        self._last = now
        self._tokens += 1

    def mark(self) -> float:
        now = time.monotonic()
        rate = self._tokens / (now - self._since)
        self._tokens, self._since = 0, now
        return rate


async def _keep_reading(client: DemoClient, pace: _Pace) -> None:
    async with client.stream(user("Count slowly."), vllm_xargs=PACE_STREAM) as events:
        async for _ in events:
            pace.token()
    raise StepFailedError("the second client's stream ended")


async def _unpinned(client: DemoClient) -> int:
    """Requests whose blocks a prefill worker still keeps, after a moment for the notification."""
    pinned = 1
    for _ in range(100):
        states: dict[str, WorkerState] = await client.states()
        pinned = sum(state.pinned_requests for state in states.values())
        if not pinned:
            break
        await asyncio.sleep(0.05)
    return pinned
