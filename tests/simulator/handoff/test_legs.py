"""Prefill and decode legs as vLLM 0.32 has them, and that the answer comes from the bytes."""

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

HYBRID = "mla+mamba*3"


@pytest.mark.parametrize("groups", ["attention", HYBRID, "attention+sliding_window:40"])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33, 300])
async def test_disaggregated_equals_aggregated(
    pair: StartPair, prompt: Prompt, groups: str, length: int
) -> None:
    workers = await pair(kv_groups=groups)
    ids = prompt(length)
    assert await workers.both(ids) == await workers.alone(ids)
    assert await workers.violations() == 0


@pytest.mark.parametrize(
    ("groups", "blocks"),
    # The decode worker has no state at a block's end, so a hybrid prompt comes over whole.
    [("attention", 4), (HYBRID, 10 + 3)],
)
async def test_a_second_turn_reads_only_what_is_new(
    pair: StartPair, prompt: Prompt, groups: str, blocks: int
) -> None:
    workers = await pair(kv_groups=groups)
    first, second = prompt(100), prompt(100) + prompt(60, 2)
    await workers.both(first)
    before = await workers.state(workers.decode_worker)
    assert await workers.both(second) == await workers.alone(second)
    after = await workers.state(workers.decode_worker)
    assert await workers.violations() == 0
    assert after["transferred_bytes"] - before["transferred_bytes"] == blocks * after["block_bytes"]


async def test_the_parameters_have_vllms_keys(pair: StartPair, prompt: Prompt, captures: Path) -> None:
    recorded = json.loads((captures / "pd" / "nixl_01_prefill_leg.json").read_text())["response"]
    workers = await pair(block_size=32)
    body = {"prompt": prompt(300), "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    _, answer = await workers.post(workers.prefill_worker, body)
    assert list(answer) == list(recorded)
    ours, theirs = answer["kv_transfer_params"], recorded["kv_transfer_params"]
    assert list(ours) == list(theirs)
    assert [type(value) for value in ours.values()] == [type(value) for value in theirs.values()]
    same = ("do_remote_prefill", "do_remote_decode", "tp_size", "dcp_size", "pp_size", "remote_num_tokens")
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert [len(group) for group in ours["remote_block_ids"]] == [10]
    assert ours["transfer_mode"] == theirs["transfer_mode"] == "pull"
    assert ours["remote_request_id"].startswith(answer["id"] + "-0-")


@pytest.mark.parametrize(
    ("name", "length", "max_tokens", "blocks", "computed"),
    [("nixl_07_prefill_short", 10, 1, 1, 10), ("nixl_14_prefill_maxtok4", 77, 4, 3, 80)],
)
async def test_partial_blocks_and_longer_legs(
    pair: StartPair,
    prompt: Prompt,
    captures: Path,
    name: str,
    length: int,
    max_tokens: int,
    blocks: int,
    computed: int,
) -> None:
    theirs = json.loads((captures / "pd" / f"{name}.json").read_text())["response"]["kv_transfer_params"]
    assert (len(theirs["remote_block_ids"][0]), theirs["remote_num_tokens"]) == (blocks, computed)
    workers = await pair(block_size=32)
    ours = await workers.prefill(prompt(length), max_tokens=max_tokens)
    assert (len(ours["remote_block_ids"][0]), ours["remote_num_tokens"]) == (blocks, computed)


async def test_a_hybrid_leg_leaves_the_last_token_to_the_reader(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair(kv_groups=HYBRID)
    body = {"prompt": prompt(100), "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    _, answer = await workers.post(workers.prefill_worker, body)
    params = answer["kv_transfer_params"]
    assert params["remote_num_tokens"] == 99
    assert answer["usage"]["prompt_tokens"] == 100
    assert [len(group) for group in params["remote_block_ids"]] == [1, 1, 1, 7]


async def test_cached_tokens_are_the_prefill_workers(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    ids = prompt(100)
    cached = []
    for _ in range(2):
        params = await workers.prefill(ids)
        _, answer = await workers.decode(ids, params)
        cached.append(
            (
                params["remote_prefill_cached_tokens"],
                answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            )
        )
        assert answer["kv_transfer_params"] is None
    assert cached == [(0, 0), (96, 96)]
    older = {name: value for name, value in (await workers.prefill(ids)).items() if "cached" not in name}
    _, answer = await workers.decode(ids, older)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 100


async def test_blocks_stay_until_they_are_read(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    ids = prompt(100)
    params = await workers.prefill(ids)
    state = await workers.state(workers.prefill_worker)
    assert (state["pinned_requests"], state["pinned_blocks"], state["running"]) == (1, 7, 0)
    assert state["kv_cache_usage"] > 0
    await workers.decode(ids, params)
    state = await workers.until(workers.prefill_worker, pinned_requests=0)
    assert (state["kv_cache_usage"], state["expired_requests"], state["late_notifications"]) == (0, 0, 0)


async def test_a_streamed_leg_returns_no_parameters_and_pins_all_the_same(
    pair: StartPair, prompt: Prompt
) -> None:
    workers = await pair(kv_lease_seconds=0.2)
    body = {
        "token_ids": prompt(50),
        "sampling_params": {"max_tokens": 1},
        "stream": True,
        "kv_transfer_params": {"do_remote_decode": True},
    }
    _, text = await workers.post(workers.prefill_worker, body, "/inference/v1/generate")
    assert "kv_transfer_params" not in text
    assert text.endswith("data: [DONE]\n\n")
    await workers.until(workers.prefill_worker, pinned_requests=0, expired_requests=1)


async def test_generate_takes_both_legs(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    body: dict[str, Any] = {"token_ids": prompt(50), "sampling_params": {"max_tokens": 1}}
    leg = body | {"kv_transfer_params": {"do_remote_decode": True}, "request_id": "r-1"}
    _, first = await workers.post(workers.prefill_worker, leg, "/inference/v1/generate")
    params = first["kv_transfer_params"]
    assert params["remote_request_id"].startswith("generate-tokens-r-1-")
    rest = body | {"sampling_params": {"max_tokens": 400}, "kv_transfer_params": params, "stream": True}
    status, text = await workers.post(workers.decode_worker, rest, "/inference/v1/generate")
    assert status == 200
    events = [json.loads(event[6:]) for event in text.split("\n\n")[:-2]]
    ids = [token for event in events for choice in event["choices"] for token in choice["token_ids"]]
    assert ids[:1] == first["choices"][0]["token_ids"]  # the first token is made again
    assert bytes(ids[:-1]).decode() == await workers.alone(prompt(50))


@pytest.mark.parametrize("thinking", [True, False])
async def test_chats_take_both_legs(pair: StartPair, thinking: bool) -> None:
    workers = await pair()
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "What does the moon weigh?"}],
        "chat_template_kwargs": {"thinking": thinking},
    }
    path = "/v1/chat/completions"
    leg = body | {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    _, first = await workers.post(workers.prefill_worker, leg, path)
    rest = body | {"kv_transfer_params": first["kv_transfer_params"]}
    messages = []
    for worker, asked in (
        (workers.decode_worker, rest),
        (workers.prefill_worker, body | {"cache_salt": "alone"}),
    ):
        status, answer = await workers.post(worker, asked, path)
        assert status == 200
        messages.append(answer["choices"][0]["message"])
    assert messages[0] == messages[1]
    assert await workers.violations() == 0
    status, answer = await workers.post(
        workers.decode_worker, rest | {"messages": body["messages"] * 2}, path
    )
    assert status == 200
    assert await workers.violations() > 0


async def test_both_sides_announce_the_blocks(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    published: dict[str, list[Any]] = {"p": [], "d": []}
    for name, worker in (("p", workers.prefill_worker), ("d", workers.decode_worker)):
        worker.engine._publish = published[name].append
    await workers.both(prompt(100), max_tokens=1)
    hashes = {
        name: [block for batch in batches for event in batch for block in event["block_hashes"]]
        for name, batches in published.items()
    }
    assert len(hashes["p"]) == 6
    assert hashes["d"] == hashes["p"]


async def test_a_prompt_that_is_all_there_is_not_read_but_the_peer_is_told(
    pair: StartPair, prompt: Prompt
) -> None:
    workers = await pair(kv_groups=HYBRID)
    ids = prompt(97)
    await workers.both(ids)
    before = await workers.state(workers.decode_worker)
    await workers.both(ids)
    after = await workers.until(workers.decode_worker, running=0)
    assert after["transferred_bytes"] == before["transferred_bytes"]
    await workers.until(workers.prefill_worker, pinned_requests=0)


async def test_sources_and_sizes_are_counted(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    await workers.both(prompt(100))
    found = await workers.metrics(workers.decode_worker)
    inline = 'transport="inline"'
    assert found['vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'] == 100
    assert found['vllm:prompt_tokens_by_source_total{source="local_compute"}'] == 0
    assert found[f"vllm:nixl_bytes_transferred_sum{{{inline}}}"] == 7 * 16 * 128
    assert found[f"vllm:nixl_bytes_transferred_count{{{inline}}}"] == 1
    assert found[f'vllm:nixl_bytes_transferred_bucket{{{inline},le="+Inf"}}'] == 1
    assert found[f"vllm:nixl_num_descriptors_sum{{{inline}}}"] == 7
    assert found[f"vllm:nixl_xfer_time_seconds_sum{{{inline}}}"] > 0
    assert found[f"sim_kv_violations_total{{{inline}}}"] == 0


async def test_many_at_once(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    prompts = [prompt(40 + seed, seed) for seed in range(20)]
    texts = await asyncio.gather(*map(workers.both, prompts))
    assert texts == [await workers.alone(ids) for ids in prompts]
    assert await workers.violations() == 0
    await workers.until(workers.prefill_worker, pinned_requests=0)


async def test_an_aggregated_worker_without_transport_ignores_the_parameters(
    start: Callable[..., Awaitable[Any]], pair: StartPair, prompt: Prompt
) -> None:
    workers = await pair(prefill={"role": "aggregated", "transport": "auto"})
    body = {"prompt": prompt(50), "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    status, answer = await workers.post(workers.prefill_worker, body)
    assert (status, answer["kv_transfer_params"]) == (200, None)


async def test_each_rank_has_an_engine_of_its_own(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair(dp_size=2)
    ids = prompt(50)
    params = [await workers.prefill(ids) for _ in range(1)]
    engine_id = params[0]["remote_engine_id"]
    assert engine_id.endswith(("_dp0", "_dp1"))
    status, answer = await workers.decode(ids, params[0])
    assert (status, answer["choices"][0]["text"]) == (200, await workers.alone(ids))


@pytest.mark.parametrize("role", ["prefill", "decode", "aggregated"])
async def test_any_worker_with_a_transport_takes_both_legs(
    pair: StartPair, prompt: Prompt, role: str
) -> None:
    workers = await pair(prefill={"role": role}, decode={"role": role})
    ids = prompt(50)
    assert await workers.both(ids) == await workers.alone(ids)
