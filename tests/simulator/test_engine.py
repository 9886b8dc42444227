"""What ends a request from outside: an abort, a reset, a failure; and steps that wait for their time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

RunningWorker = Any  # conftest's, which cannot be imported
Start = Callable[..., Awaitable[RunningWorker]]
LONG = {"script_ids": [5] * 1000, "delay_ms": 5}


async def _post(worker: RunningWorker, path: str, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.post(worker.url + path, json=body) as response:
        text = await response.text()
    if not text.startswith("data: "):
        return response.status, json.loads(text) if text else None
    events = [part.removeprefix("data: ") for part in text.split("\n\n")]
    assert events[-2:] == ["[DONE]", ""]
    return response.status, [json.loads(event) for event in events[:-2]]


async def _generate(worker: RunningWorker, script: Any, *, stream: bool = False, name: str = "a") -> Any:
    sampling = {"max_tokens": 1000, "extra_args": script}
    body = {"token_ids": [1] * 40, "sampling_params": sampling, "stream": stream, "request_id": name}
    return await _post(worker, "/inference/v1/generate", body)


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")


@pytest.mark.parametrize("path", ["/inference/v1/abort_requests", "/abort_requests"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_aborted_request_ends_where_it_is(start: Start, path: str, stream: bool) -> None:
    worker = await start()
    counters = worker.engine.counters
    answer = asyncio.create_task(_generate(worker, LONG, stream=stream))
    await _until(lambda: counters.generation_tokens > 2)
    assert (await _post(worker, path, {"request_ids": ["nobody", "generate-tokens-a"]}))[0] == 200
    status, said = await answer
    assert status == 200
    assert (said[-1] if stream else said)["choices"][0]["finish_reason"] == "abort"
    chunks = said if stream else [said]
    tokens = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert 2 < len(tokens) < 1000
    assert worker.engine.cache.usage() == 0


async def test_an_abort_names_requests(start: Start) -> None:
    status, answer = await _post(await start(), "/abort_requests", {})
    assert (status, answer["error"]["message"]) == (400, "Missing 'request_ids' in request body")


async def test_a_reset_starts_running_requests_anew(start: Start) -> None:
    worker = await start()
    counters = worker.engine.counters
    answer = asyncio.create_task(_generate(worker, {"script_ids": list(range(50)), "delay_ms": 5}))
    await _until(lambda: counters.generation_tokens > 2)
    _, done = await _post(worker, "/reset_prefix_cache", None)
    assert done == {"success": False}
    _, done = await _post(worker, "/reset_prefix_cache?reset_running_requests=true", None)
    assert done == {"success": True}
    _, said = await answer
    assert said["choices"][0]["token_ids"] == list(range(50))


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_fails_says_so_to_all(
    start: Start, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await start()
    counters = worker.engine.counters
    answers = [asyncio.create_task(_generate(worker, LONG, stream=stream, name=name)) for name in "ab"]
    await _until(lambda: counters.generation_tokens > 4)

    def fail(now: float) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as broken:
        broken.setattr(worker.engine._scheduler, "plan", fail)
        for status, said in await asyncio.gather(*answers):
            assert status == (200 if stream else 500)
            assert (said[-1] if stream else said)["error"]["code"] == 500
    await _until(lambda: worker.engine.cache.usage() == 0)
    status, said = await _generate(worker, {"script_ids": [7]})
    assert said["choices"][0]["token_ids"] == [7]


async def test_a_step_that_falls_due_while_steps_are_planned(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not due when the step was planned, and is when the engine looks how long to wait."""
    worker = await start()
    plan = worker.engine._scheduler.plan

    def slow_plan(now: float) -> Any:
        batch = plan(now)
        time.sleep(0.005)
        return batch

    monkeypatch.setattr(worker.engine._scheduler, "plan", slow_plan)
    async with asyncio.timeout(60):
        _, said = await _generate(worker, {"script_ids": [5] * 20, "delay_ms": 2})
    assert said["choices"][0]["token_ids"] == [5] * 20
