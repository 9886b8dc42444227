"""The metrics page, read as Prometheus does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

RunningWorker = Any  # conftest's, which cannot be imported
Start = Callable[..., Awaitable[RunningWorker]]
Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def _page(worker: RunningWorker) -> Page:
    async with aiohttp.ClientSession() as client, client.get(worker.url + "/metrics") as response:
        text = await response.text()
    page: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset(item for item in sample.labels.items() if item[0] != "model_name")
            assert (sample.name, labels) not in page
            page[sample.name, labels] = sample.value
    return page


def _value(page: Page, name: str, **labels: str) -> float:
    return page[name, frozenset(({"engine": "0"} | labels).items())]


async def _generate(worker: RunningWorker, ids: list[int], path: str = "generate", **script: Any) -> int:
    body = {"token_ids": ids, "sampling_params": {"max_tokens": 9, "extra_args": script}}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{worker.url}/inference/v1/{path}", json=body) as response,
    ):
        await response.read()
        return response.status


async def test_tokens_hits_and_endings(start: Start) -> None:
    worker = await start()
    for _ in range(2):
        await _generate(worker, [1] * 40, script_ids=[5, 6, 7])
    await _generate(worker, [2] * 10, script_ids=[5] * 20)
    page = await _page(worker)
    expected = {
        "vllm:prompt_tokens_total": 90,
        "vllm:prefix_cache_queries_total": 90,
        "vllm:prefix_cache_hits_total": 32,
        "vllm:generation_tokens_total": 15,
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:num_preemptions_total": 0,
        "vllm:time_to_first_token_seconds_count": 3,
        "vllm:inter_token_latency_seconds_count": 12,
        "vllm:request_prompt_tokens_sum": 90,
        "vllm:request_generation_tokens_sum": 15,
        "vllm:request_prefill_kv_computed_tokens_sum": 58,
        "vllm:iteration_tokens_total_sum": 58 + 12,
    }
    assert {name: _value(page, name) for name in expected} == expected
    ended = {
        reason: _value(page, "vllm:request_success_total", finished_reason=reason)
        for reason in ("stop", "length", "abort", "error")
    }
    assert ended == {"stop": 2, "length": 1, "abort": 0, "error": 0}
    assert _value(page, "vllm:prompt_tokens_by_source_total", source="local_compute") == 58


async def test_buckets_add_up(start: Start) -> None:
    worker = await start()
    for length in (1, 2, 3, 500):
        await _generate(worker, [1] * length, script_ids=[5])
    page = await _page(worker)
    counts = [
        _value(page, "vllm:request_prompt_tokens_bucket", le=bound)
        for bound in ("1.0", "2.0", "5.0", "200.0", "500.0", "+Inf")
    ]
    assert counts == [1, 2, 3, 3, 4, 4]


async def test_what_runs_and_waits(start: Start) -> None:
    worker = await start(max_num_seqs=1, block_size=4, num_blocks=21)
    slow: dict[str, Any] = {"script_ids": [5] * 9, "delay_ms": 30}
    tasks = [asyncio.create_task(_generate(worker, [n] * 40, **slow)) for n in range(2)]
    for _ in range(2000):
        page = await _page(worker)
        if _value(page, "vllm:num_requests_running") and _value(page, "vllm:num_requests_waiting"):
            break
        await asyncio.sleep(0.005)
    assert 0.5 <= _value(page, "vllm:kv_cache_usage_perc") <= 0.65
    assert _value(page, "vllm:num_requests_waiting_by_reason", reason="capacity") == 1
    await asyncio.gather(*tasks)


async def test_each_rank_is_an_engine(start: Start) -> None:
    page = await _page(await start(dp_size=2))
    engines = {dict(labels)["engine"] for name, labels in page if name == "vllm:num_requests_running"}
    assert engines == {"0", "1"}


async def test_exchanges_are_counted_by_handler_and_status(start: Start) -> None:
    worker = await start()
    await _generate(worker, [1], script_ids=[5])
    await _generate(worker, [])
    page = await _page(worker)
    for status in ("2xx", "4xx"):
        labels = {"handler": "/inference/v1/generate", "method": "POST", "status": status}
        assert page["http_requests_total", frozenset(labels.items())] == 1


async def test_the_cache_is_described(start: Start) -> None:
    page = await _page(await start(block_size=16, num_blocks=100))
    (labels,) = [dict(labels) for name, labels in page if name == "vllm:cache_config_info"]
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("16", "100")
    assert labels["enable_prefix_caching"] == "True"
