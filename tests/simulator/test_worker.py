"""What a running worker does: streams, stops, queues, limits, a client that leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

RunningWorker = Any  # conftest's, which cannot be imported
Start = Callable[..., Awaitable[RunningWorker]]
END_OF_MESSAGE = 163_586


def _body(ids: list[int], script: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    sampling = dict(options.pop("sampling", {}))
    if script is not None:
        sampling["extra_args"] = script
    return {"token_ids": ids, "sampling_params": sampling} | options


async def _post(worker: RunningWorker, body: dict[str, Any], path: str = "/inference/v1/generate") -> Any:
    async with aiohttp.ClientSession() as client, client.post(worker.url + path, json=body) as response:
        return await response.json()


async def _events(
    worker: RunningWorker, body: dict[str, Any], path: str = "/inference/v1/generate"
) -> list[Any]:
    async with aiohttp.ClientSession() as client, client.post(worker.url + path, json=body) as response:
        text = await response.text()
    events = [part.removeprefix("data: ") for part in text.split("\n\n")]
    assert events[-2:] == ["[DONE]", ""]
    return [json.loads(event) for event in events[:-2]]


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")


async def test_one_chunk_for_each_step_and_the_end_token_stops(start: Start) -> None:
    worker = await start()
    script = {"script_ids": [10, 11, 12, 13, END_OF_MESSAGE, 99], "tokens_per_step": 2}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage = await _events(worker, _body([1, 2, 3], script, **options))
    assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[10, 11], [12, 13], [END_OF_MESSAGE]]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert chunks[-1]["choices"][0]["stop_reason"] == END_OF_MESSAGE
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 8,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize(
    ("sampling", "ids", "finish", "stop_reason"),
    [
        ({"max_tokens": 2}, [10, 11], "length", None),
        ({"stop_token_ids": [11]}, [10, 11], "stop", 11),
        ({"stop": ["bc"]}, [10, 97, 98, 99], "stop", "bc"),
        ({"stop": "zz"}, [10, 97, 98, 99], "stop", None),
        ({"max_tokens": 6, "ignore_eos": True}, [10, END_OF_MESSAGE, 32, 97, 110, 100], "length", None),
        ({"min_tokens": 2}, [END_OF_MESSAGE, 10, END_OF_MESSAGE], "stop", END_OF_MESSAGE),
    ],
)
async def test_limits(
    start: Start, sampling: dict[str, Any], ids: list[int], finish: str, stop_reason: int | str | None
) -> None:
    worker = await start()
    scripts = {"stop_token_ids": [10, 11, 12], "max_tokens": [10, 11, 12], "stop": [10, 97, 98, 99]}
    script = next((scripts[name] for name in sampling if name in scripts), ids)
    if "ignore_eos" in sampling:
        script = [10, END_OF_MESSAGE]
    answer = await _post(worker, _body([1], {"script_ids": script}, sampling=sampling))
    choice = answer["choices"][0]
    assert (choice["token_ids"], choice["finish_reason"], choice["stop_reason"]) == (ids, finish, stop_reason)


async def test_the_context_ends_an_output(start: Start) -> None:
    worker = await start(max_model_len=100)
    answer = await _post(worker, _body([1] * 90, {"script_ids": [5] * 50}))
    assert answer["usage"]["total_tokens"] == 100
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_choices_are_interleaved_and_complete(start: Start) -> None:
    worker = await start()
    chunks = await _events(worker, _body([1] * 40, {"script_ids": [5, 6, 7]}, sampling={"n": 3}, stream=True))
    for index in range(3):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["token_ids"] for choice in own] == [[5], [6], [7]]
    answer = await _post(worker, _body([1] * 40, {"script_ids": [5, 6, 7]}, sampling={"n": 3}))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 9


async def test_completion_batches_number_their_choices(start: Start) -> None:
    worker = await start()
    body = {"prompt": [[65, 66], [67]], "n": 2, "echo": True, "vllm_xargs": {"script_ids": [97, 98]}}
    answer = await _post(worker, body, "/v1/completions")
    assert [choice["text"] for choice in answer["choices"]] == ["ABab", "ABab", "Cab", "Cab"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3


async def test_completion_text_never_has_half_a_character(start: Start) -> None:
    worker = await start()
    ids = list("a☃b".encode())
    body = {"prompt": "x", "stream": True, "vllm_xargs": {"script_ids": [*ids, END_OF_MESSAGE]}}
    chunks = await _events(worker, body, "/v1/completions")
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "", "", "☃", "b", ""]
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_its_generation(start: Start, stream: bool) -> None:
    worker = await start()
    counters = worker.engine.counters
    client = aiohttp.ClientSession()
    body = _body([1] * 100, {"script_ids": [5] * 1000, "delay_ms": 5}, stream=stream)
    request = asyncio.create_task(client.post(worker.url + "/inference/v1/generate", json=body))
    await _until(lambda: counters.running == 1)
    if stream:
        response = await request
        await response.content.readany()
        response.close()
    else:
        request.cancel()
    await _until(lambda: counters.running == 0)
    assert worker.engine.cache.usage() == 0
    assert not any(counters.finishes.values())
    assert counters.generation_tokens < 1000
    await client.close()


async def test_requests_wait_for_room_and_go_in_order(start: Start) -> None:
    worker = await start(num_blocks=9, block_size=4)
    counters = worker.engine.counters
    slow = _body([1] * 20, {"script_ids": [5] * 8, "delay_ms": 20})
    first = asyncio.create_task(_post(worker, slow))
    await _until(lambda: counters.running == 1)
    second = asyncio.create_task(_post(worker, _body([2] * 20, {"script_ids": [5]})))
    await _until(lambda: counters.waiting == 1)
    assert counters.running == 1
    answers = await asyncio.gather(first, second)
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [8, 1]
    assert (counters.running, counters.waiting) == (0, 0)


async def test_no_more_than_max_num_seqs_run(start: Start) -> None:
    worker = await start(max_num_seqs=2)
    counters = worker.engine.counters
    body = _body([1], {"script_ids": [5] * 4, "delay_ms": 20})
    tasks = [asyncio.create_task(_post(worker, body)) for _ in range(4)]
    await _until(lambda: counters.waiting == 2)
    assert counters.running == 2
    await asyncio.gather(*tasks)
    assert counters.finishes["stop"] == 4


async def test_a_waiting_client_that_leaves_gives_its_turn_up(start: Start) -> None:
    worker = await start(max_num_seqs=1)
    counters = worker.engine.counters
    running = asyncio.create_task(_post(worker, _body([1], {"script_ids": [5] * 10, "delay_ms": 20})))
    await _until(lambda: counters.running == 1)
    waiting = asyncio.create_task(_post(worker, _body([1], {"script_ids": [5]})))
    await _until(lambda: counters.waiting == 1)
    waiting.cancel()
    await _until(lambda: counters.waiting == 0)
    await running
    await _post(worker, _body([1], {"script_ids": [5]}))


async def test_the_repeated_prefix_is_cached_and_the_salt_separates(start: Start) -> None:
    worker = await start()
    prompt = list(range(200))

    async def cached(**options: Any) -> int:
        answer = await _post(worker, _body(prompt, {"script_ids": [5]}, **options))
        count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert await cached() == 0
    assert await cached() == 192
    assert await cached(cache_salt="a") == 0
    assert await cached(cache_salt="a") == 192


async def test_a_million_tokens(start: Start) -> None:
    worker = await start(num_blocks=33_000)
    prompt = list(range(100_000)) * 10
    answer = await _post(worker, _body(prompt, {"script_ids": [5]}))
    assert answer["usage"]["prompt_tokens"] == 1_000_000
    answer = await _post(worker, _body(prompt, {"script_ids": [5]}))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 999_968


async def test_version_says_that_it_is_simulated(start: Start) -> None:
    worker = await start()
    async with aiohttp.ClientSession() as client, client.get(worker.url + "/version") as response:
        assert await response.json() == {"version": "0.32.0+sim"}


async def test_settings_that_cannot_work(start: Start) -> None:
    for options in ({"num_blocks": 1}, {"num_blocks": 4, "max_model_len": 4096}, {"speedup": 0.0}):
        with pytest.raises(ValueError, match=r"must|need|fit"):
            await start(**options)
