"""What goes wrong between two workers, with the status and the words that vLLM has for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

Pair = Any  # conftest's, which cannot be imported
StartPair = Callable[..., Awaitable[Pair]]
Prompt = Callable[..., list[int]]


async def test_another_prompts_parameters_answer_200_and_wrong(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    mine, other = prompt(100, 1), prompt(100, 2)
    status, answer = await workers.decode(mine, await workers.prefill(other))
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["text"] != await workers.alone(mine)
    assert await workers.violations() == 7


async def test_wrong_blocks_stay_in_the_cache(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    mine, other = prompt(100, 1), prompt(100, 2)
    await workers.decode(mine, await workers.prefill(other))
    _, again = await workers.decode(mine, None)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert again["choices"][0]["text"] != await workers.alone(mine)
    assert await workers.violations() == 14


async def test_parameters_used_twice_for_their_prompt_are_late_but_right(
    pair: StartPair, prompt: Prompt
) -> None:
    workers = await pair()
    ids = prompt(100)
    params = await workers.prefill(ids)
    texts = {(await workers.decode(ids, params))[1]["choices"][0]["text"] for _ in range(2)}
    assert texts == {await workers.alone(ids)}
    assert await workers.violations() == 0
    await workers.until(workers.prefill_worker, late_notifications=1)


async def test_a_pull_after_the_lease_reads_whatever_is_there(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair(kv_lease_seconds=0.1, prefill={"num_blocks": 16})
    ids = prompt(100, 1)
    params = await workers.prefill(ids)
    await workers.until(workers.prefill_worker, expired_requests=1, pinned_blocks=0)
    await workers.alone(prompt(150, 3))  # takes the blocks
    status, answer = await workers.decode(ids, params)
    assert status == 200
    assert await workers.violations() > 0
    assert answer["choices"][0]["text"] != await workers.alone(ids)
    await workers.until(workers.prefill_worker, late_notifications=1)
    found = await workers.metrics(workers.prefill_worker)
    assert found['vllm:nixl_num_kv_expired_reqs_total{transport="inline"}'] == 1
    assert found['vllm:nixl_num_notifications_after_expiry_total{transport="inline"}'] == 1


async def test_heartbeats_keep_the_blocks_of_a_request_in_the_queue(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair(kv_lease_seconds=1.0, decode={"max_num_seqs": 1})
    held = asyncio.create_task(workers.decode([1], None, vllm_xargs={"script_ids": [5] * 80, "delay_ms": 20}))
    await workers.until(workers.decode_worker, running=1)
    ids = prompt(100)
    waiting = asyncio.create_task(workers.decode(ids, await workers.prefill(ids)))
    await held  # longer than a lease
    status, answer = await waiting
    assert (status, answer["choices"][0]["text"]) == (200, await workers.alone(ids))
    state = await workers.until(workers.prefill_worker, pinned_requests=0)
    assert state["expired_requests"] == 0
    assert state["heartbeats"] > 0
    assert await workers.violations() == 0


@pytest.mark.parametrize("wrong", [{"remote_port": 9}, {"remote_engine_id": "2" * 36}])
async def test_a_peer_that_is_not_there_is_an_internal_error(
    pair: StartPair, prompt: Prompt, captures: Path, wrong: dict[str, Any]
) -> None:
    recorded = json.loads((captures / "pd" / "nixl_f01_unreachable_port.json").read_text())
    workers = await pair(handshake_seconds=0.2)
    ids = prompt(50)
    params = await workers.prefill(ids)
    status, answer = await workers.decode(ids, params | {"remote_engine_id": "1" * 36} | wrong)
    assert (status, answer) == (recorded["status"], recorded["response"])
    found = await workers.metrics(workers.decode_worker)
    assert found['vllm:nixl_num_failed_transfers_total{transport="inline"}'] == 1
    assert found['vllm:request_success_total{finished_reason="error"}'] == 1
    status, answer = await workers.decode(ids, params)
    assert (status, answer["choices"][0]["text"]) == (200, await workers.alone(ids))


async def test_a_failed_stream_says_so_in_the_stream(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair(handshake_seconds=0.1)
    ids = prompt(50)
    params = await workers.prefill(ids) | {"remote_port": 9}
    status, text = await workers.decode(ids, params, stream=True)
    assert status == 200
    first, done, _ = text.split("\n\n")
    error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    assert json.loads(first.removeprefix("data: ")) == {"error": error}
    assert done == "data: [DONE]"


async def test_recompute_answers_without_the_peer(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair(handshake_seconds=0.1, decode={"kv_load_failure_policy": "recompute"})
    ids = prompt(50)
    status, answer = await workers.decode(ids, await workers.prefill(ids) | {"remote_port": 9})
    assert (status, answer["choices"][0]["text"]) == (200, await workers.alone(ids))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert await workers.violations() == 0


async def test_too_few_blocks_fail(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    params = await workers.prefill(prompt(20))
    for blocks in (params["remote_block_ids"], [], [[1], [2]]):
        status, _ = await workers.decode(prompt(100), params | {"remote_block_ids": blocks})
        assert status == 500
    assert (await workers.state(workers.decode_worker))["failed_transfers"] == 3


INCOMPLETE: list[dict[str, Any]] = [
    {"do_remote_prefill": True},
    {"do_remote_prefill": True, "remote_block_ids": [1, 2]},
    {"do_remote_prefill": True, "remote_engine_id": 3},
]


@pytest.mark.parametrize("params", INCOMPLETE)
async def test_incomplete_parameters_kill_the_engine(
    pair: StartPair, prompt: Prompt, captures: Path, params: dict[str, Any]
) -> None:
    recorded = json.loads((captures / "pd" / "nixl_f05_missing_fields.json").read_text())
    workers = await pair()
    other = asyncio.create_task(
        workers.decode([1], None, vllm_xargs={"script_ids": [5] * 1000, "delay_ms": 10})
    )
    await workers.until(workers.decode_worker, running=1)
    status, answer = await workers.decode(prompt(50), params)
    assert (status, answer) == (recorded["status"], recorded["response"])
    assert await other == (status, answer)
    assert await workers.decode(prompt(50), None) == (status, answer)
    assert await workers.exited() == 1


@pytest.mark.parametrize("params", INCOMPLETE)
async def test_or_are_survived(pair: StartPair, prompt: Prompt, params: dict[str, Any]) -> None:
    workers = await pair(decode={"survive_incomplete_params": True})
    status, answer = await workers.decode(prompt(50), params)
    assert (status, answer["choices"][0]["text"]) == (200, await workers.alone(prompt(50)))
    assert workers.exits == []


async def test_a_request_that_is_rejected_frees_the_peers_blocks(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair(decode={"max_model_len": 64})
    ids = prompt(100)
    status, _ = await workers.decode(ids, await workers.prefill(ids))
    assert status == 400
    await workers.until(workers.prefill_worker, pinned_requests=0, expired_requests=0)


async def test_a_client_that_leaves_the_queue_frees_the_peers_blocks(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair(decode={"max_num_seqs": 1})
    held = asyncio.create_task(
        workers.decode([1], None, vllm_xargs={"script_ids": [5] * 1000, "delay_ms": 10})
    )
    await workers.until(workers.decode_worker, running=1)
    ids = prompt(100)
    waiting = asyncio.create_task(workers.decode(ids, await workers.prefill(ids)))
    await workers.until(workers.decode_worker, waiting=1)
    waiting.cancel()
    await workers.until(workers.prefill_worker, pinned_requests=0, expired_requests=0)
    await workers.until(workers.decode_worker, waiting=0)
    held.cancel()


async def test_a_client_that_leaves_during_the_read_leaves_no_blocks_behind(
    pair: StartPair, prompt: Prompt
) -> None:
    workers = await pair()
    ids = prompt(100)
    params = await workers.prefill(ids)
    await workers.fault(workers.decode_worker, slow_link=7 * 16 * 128 / 0.2)
    reading = asyncio.create_task(workers.decode(ids, params))
    await workers.until(workers.decode_worker, waiting=1)
    reading.cancel()
    await workers.until(workers.decode_worker, waiting=0, running=0, kv_cache_usage=0.0, transfers=1)
    await workers.until(workers.prefill_worker, pinned_requests=0)


async def test_a_prefill_leg_whose_client_leaves_pins_nothing(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    leg = asyncio.create_task(
        workers.prefill(prompt(50), max_tokens=100, vllm_xargs={"script_ids": [5] * 100, "delay_ms": 10})
    )
    await workers.until(workers.prefill_worker, running=1)
    leg.cancel()
    await workers.until(workers.prefill_worker, running=0, pinned_requests=0, kv_cache_usage=0.0)


async def test_pinned_blocks_are_not_given_away(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair(kv_lease_seconds=0.3, prefill={"num_blocks": 9})
    await workers.prefill(prompt(100))
    text = await workers.alone(prompt(40, 2), max_tokens=10)  # waits for the lease to run out
    state = await workers.state(workers.prefill_worker)
    assert (state["expired_requests"], text) == (1, text)
