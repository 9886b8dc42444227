"""What probing makes of a worker's answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.config import WorkerSettings
from gateway.engines.sglang import Bootstrap
from gateway.fleet.probe import ProbeError, connectable, healthy, probe
from gateway.fleet.worker import KvSource

Answers = Mapping[str, tuple[int, Any]]

MODELS = {
    "object": "list",
    "data": [{"id": "m", "max_model_len": 2048}, {"id": "lora", "max_model_len": 1024}],
}
SOURCES = {
    "0": {"endpoint": "tcp://*:5567", "replay_endpoint": "tcp://*:5568", "topic": "kv", "buffer_steps": 10},
    "1": {"endpoint": "tcp://*:5569", "replay_endpoint": None},
}


@asynccontextmanager
async def worker(
    answers: Answers, **settings: Any
) -> AsyncIterator[tuple[aiohttp.ClientSession, WorkerSettings]]:
    """A worker that answers those paths, and 404 elsewhere."""

    async def handle(request: web.Request) -> web.Response:
        status, body = answers.get(request.path, (404, {"detail": "Not Found"}))
        if isinstance(body, str):
            return web.Response(text=body, status=status)
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession() as session:
            yield session, WorkerSettings(url=f"http://127.0.0.1:{port}", **settings)
    finally:
        await runner.cleanup()


async def test_everything_a_vllm_worker_tells_is_taken_up() -> None:
    answers: Answers = {
        "/v1/models": (200, MODELS),
        "/version": (200, {"version": "0.32.0"}),
        "/inference/v1/generate": (400, {"error": {"message": "token_ids missing"}}),
        "/kv_event_sources": (200, SOURCES),
    }
    async with worker(answers) as (session, settings):
        profile = await probe(session, settings)
    assert profile.models == ("m", "lora")
    assert profile.context_length == 1024
    assert profile.endpoint == "generate"
    assert profile.version == "0.32.0"
    assert profile.kv_sources == {
        0: KvSource("tcp://127.0.0.1:5567", "tcp://127.0.0.1:5568", "kv"),
        1: KvSource("tcp://127.0.0.1:5569", None, ""),
    }


@pytest.mark.parametrize(
    ("generate", "completions", "endpoint"),
    [
        (400, 400, "generate"),
        (422, 404, "generate"),
        (403, 400, "completions"),
        (404, 400, "completions"),
        (404, 404, "openai"),
        (405, 405, "openai"),
    ],
)
async def test_the_best_endpoint_that_is_there_is_chosen(
    generate: int, completions: int, endpoint: str
) -> None:
    answers: Answers = {
        "/v1/models": (200, MODELS),
        "/inference/v1/generate": (generate, {}),
        "/v1/completions": (completions, {}),
    }
    async with worker(answers) as (session, settings):
        assert (await probe(session, settings)).endpoint == endpoint


async def test_an_endpoint_that_the_configuration_names_is_not_probed() -> None:
    answers: Answers = {"/v1/models": (200, MODELS), "/inference/v1/generate": (400, {})}
    async with worker(answers, engine="openai") as (session, settings):
        assert (await probe(session, settings)).endpoint == "openai"


async def test_configured_event_endpoints_win_over_what_the_worker_says() -> None:
    answers: Answers = {"/v1/models": (200, MODELS), "/kv_event_sources": (200, SOURCES)}
    async with worker(answers, kv_events="tcp://h:1", kv_replay="tcp://h:2") as (session, settings):
        assert (await probe(session, settings)).kv_sources == {0: KvSource("tcp://h:1", "tcp://h:2")}


@pytest.mark.parametrize("models", [(404, {}), (200, {"data": []}), (200, "nonsense"), (503, {})])
async def test_a_worker_without_a_model_cannot_be_used(models: tuple[int, Any]) -> None:
    async with worker({"/v1/models": models}) as (session, settings):
        with pytest.raises(ProbeError, match="no model"):
            await probe(session, settings)


async def test_a_worker_that_is_not_there_cannot_be_used() -> None:
    async with worker({}) as (session, settings):
        pass
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ProbeError, match="Connect"):
            await probe(session, settings)
        assert "Connect" in (await healthy(session, settings) or "")


@pytest.mark.parametrize(("answer", "well"), [((200, {}), True), ((503, {}), False)])
async def test_health_is_what_the_worker_says(answer: tuple[int, Any], well: bool) -> None:
    async with worker({"/health": answer}) as (session, settings):
        assert (await healthy(session, settings) is None) is well


@pytest.mark.parametrize(
    ("endpoint", "host", "expected"),
    [
        ("tcp://*:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", "w1", "tcp://w1:5557"),
        ("tcp://*:5557", "fd00::1", "tcp://[fd00::1]:5557"),
        ("tcp://10.1.1.1:5557", "w1", "tcp://10.1.1.1:5557"),
        ("ipc:///tmp/kv", "w1", "ipc:///tmp/kv"),
    ],
)
def test_a_bind_address_becomes_one_to_connect_to(endpoint: str, host: str, expected: str) -> None:
    assert connectable(endpoint, host) == expected


SGLANG_INFO = json.loads((Path(__file__).parent / "data/sglang_server_info.json").read_bytes())


def sglang(**changes: Any) -> Answers:
    return {"/v1/models": (200, MODELS), "/server_info": (200, SGLANG_INFO | changes)}


async def test_everything_a_sglang_worker_tells_is_taken_up() -> None:
    async with worker(sglang()) as (session, settings):
        profile = await probe(session, settings)
    assert (profile.engine, profile.endpoint, profile.version) == ("sglang", "sglang", "0.5.23")
    assert (profile.role, profile.dp_ranks, profile.block_size) == ("aggregated", 1, 32)
    assert profile.max_num_seqs == 16
    assert profile.kv_sources == {0: KvSource("tcp://127.0.0.1:6557", "tcp://127.0.0.1:6558", "")}
    assert profile.bootstrap is None
    assert profile.layout["kv_cache_dtype"] == "auto"


async def test_a_sglang_worker_with_a_hybrid_model_keeps_states_at_ends() -> None:
    for hybrid in (False, True):
        async with worker(sglang(uses_mamba_radix_cache=hybrid)) as (session, settings):
            assert (await probe(session, settings)).states_at_ends is hybrid


async def test_a_sglang_prefill_worker_says_where_decode_finds_it() -> None:
    events = {**SGLANG_INFO["kv_events"], "dp_size": 2}
    answers = sglang(disaggregation_mode="prefill", dp_size=2, kv_events=events)
    async with worker(answers, role="prefill") as (session, settings):
        profile = await probe(session, settings)
    assert profile.role == "prefill"
    assert profile.bootstrap == Bootstrap("127.0.0.1", 8998, 2)
    assert profile.kv_sources[1] == KvSource("tcp://127.0.0.1:6558", "tcp://127.0.0.1:6559", "")


async def test_a_sglang_decode_workers_events_are_not_waited_for() -> None:
    async with worker(sglang(disaggregation_mode="decode"), role="decode") as (session, settings):
        assert (await probe(session, settings)).kv_sources == {}


async def test_a_worker_that_runs_in_another_role_than_configured_cannot_be_used() -> None:
    async with worker(sglang(), role="prefill") as (session, settings):
        with pytest.raises(ProbeError, match="configured as prefill and runs as aggregated"):
            await probe(session, settings)


async def test_another_start_of_a_sglang_worker_is_another_life() -> None:
    lives = []
    for seed in (1, 1, 2):
        async with worker(sglang(random_seed=seed)) as (session, settings):
            lives.append((await probe(session, settings)).life)
    assert lives[0] == lives[1] != lives[2]


async def test_vllms_development_path_of_that_name_is_not_sglang() -> None:
    answers: Answers = {
        "/v1/models": (200, MODELS),
        "/server_info": (200, {"vllm_config": "..."}),
        "/inference/v1/generate": (400, {}),
    }
    async with worker(answers) as (session, settings):
        assert (await probe(session, settings)).engine == "vllm"
    async with worker(answers, engine="sglang") as (session, settings):
        with pytest.raises(ProbeError, match="configured as SGLang"):
            await probe(session, settings)


async def test_a_vllm_workers_metrics_tell_its_life_ranks_and_block_size() -> None:
    page = (
        'vllm:cache_config_info{block_size="64",engine="0"} 1.0\n'
        'vllm:cache_config_info{block_size="64",engine="1"} 1.0\n'
        "process_start_time_seconds 1.79604679006e+09\n"
        'vllm:nixl_bytes_transferred_sum{engine="0"} 10.0\n'
    )
    answers: Answers = {"/v1/models": (200, MODELS), "/v1/completions": (400, {}), "/metrics": (200, page)}
    async with worker(answers) as (session, settings):
        profile = await probe(session, settings)
    assert (profile.block_size, profile.dp_ranks, profile.life) == (64, 2, "1796046790.06")
    assert profile.has_connector
