"""A worker that is given a prompt and the beginning of its answer says the rest of that answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from parsers.base import Chat
from parsers.registry import get_format
from simulator.prompt import answer_start
from simulator.script import OPENING
from simulator.tokens import Tokens
from tests.simulator.conftest import ByteVocabulary, RunningWorker

TOKENS = Tokens(get_format("kimi_k3"), ByteVocabulary())
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
LONG = "Tell me 🌍 about 東京 and écoles. " * 5


def prompt(thinking: bool = True, tools: Any = None, text: str = LONG) -> list[int]:
    chat = Chat(messages=[{"role": "user", "content": text}], tools=tools, thinking=thinking)
    return TOKENS.encode_segments(TOKENS.model_format.encode(chat).segments)


PROMPTS = {
    "reasoning": prompt(),
    "no reasoning": prompt(thinking=False),
    "tools": prompt(tools=TOOLS, text="look_up it"),
    "text": TOKENS.encode(LONG),
}


async def say(client: aiohttp.ClientSession, url: str, ids: list[int], **sampling: Any) -> list[int]:
    body = {"token_ids": ids, "sampling_params": sampling, "stream": False}
    async with client.post(f"{url}/inference/v1/generate", json=body) as response:
        assert response.status == 200, await response.text()
        said: list[int] = (await response.json())["choices"][0]["token_ids"]
        return said


@pytest.fixture
async def worker_url(start: Callable[..., Awaitable[RunningWorker]]) -> str:
    return (await start(num_blocks=4096)).url


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize("name", PROMPTS)
async def test_the_rest_is_said_wherever_it_broke_off(
    name: str, client: aiohttp.ClientSession, worker_url: str
) -> None:
    ids = PROMPTS[name]
    whole = await say(client, worker_url, ids)
    assert len(whole) > 20
    for cut in {1, 2, 3, len(whole) // 2, len(whole) - 1, *range(5, len(whole), 9)}:
        if name == "text" and cut < 2:
            continue  # One token of a text can be anybody's.
        assert await say(client, worker_url, ids + whole[:cut]) == whole[cut:], cut


async def test_limits_hold_for_the_rest(client: aiohttp.ClientSession, worker_url: str) -> None:
    ids = PROMPTS["reasoning"]
    whole = await say(client, worker_url, ids)
    assert await say(client, worker_url, ids + whole[:7], max_tokens=5) == whole[7:12]
    longer = {"ignore_eos": True, "max_tokens": len(whole) + 40}
    more = await say(client, worker_url, ids, **longer)
    rest = longer | {"max_tokens": len(more) - 10}
    assert await say(client, worker_url, ids + more[:10], **rest) == more[10:]


def test_a_prompt_that_holds_no_answer_ends_where_it_ends() -> None:
    opening = TOKENS.encode(OPENING)[:-1]
    for ids in PROMPTS.values():
        assert answer_start(ids, TOKENS, opening) == len(ids)
