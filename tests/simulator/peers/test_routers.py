"""Others' routers get right answers from simulated workers."""

from __future__ import annotations

from loadtests.processes import free_ports
from tests.simulator.peers.conftest import Start

PROMPTS = [
    f"Request {number}. " + "A prompt that is long enough to fill some blocks. " * 12 for number in range(4)
]


def test_vllm_router_carries_blocks_from_prefill_to_decode(
    worker: Start, router: Start, vllm_router: str, transport: str
) -> None:
    prefill = worker("prefill", role="prefill", transport=transport)
    decode = worker("decode", role="decode", transport=transport)
    port, metrics_port = free_ports(2)
    command = [
        vllm_router,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--prometheus-port",
        str(metrics_port),
    ]
    command += ["--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    pair = router("router", [*command, "--prefill", prefill.url, "--decode", decode.url], port)
    for prompt in PROMPTS:
        # A salt keeps the worker's own answer from what the legs left in its cache.
        assert pair.completion(prompt) == prefill.completion(prompt, cache_salt="alone")
    asked = "Tell me about blocks. " * 20
    assert pair.chat(asked) == prefill.chat(asked, cache_salt="alone")
    assert pair.chat(asked, stream=True) == prefill.chat(asked, cache_salt="alone")
    state = decode.state()
    (rank,) = state["ranks"]
    assert state["sim_kv_violations"] == 0
    assert rank["transfers"] >= len(PROMPTS)
    assert rank["failed_transfers"] == 0
    assert prefill.state()["ranks"][0]["pinned_requests"] == 0


def test_smg_spreads_requests_over_workers(worker: Start, router: Start, smg: str) -> None:
    workers = [worker(name) for name in ("one", "two")]
    port, metrics_port = free_ports(2)
    command = [smg, "launch", "--backend", "vllm", "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "--prometheus-port",
        str(metrics_port),
        "--policy",
        "round_robin",
        "--disable-tokenizer-autoload",
    ]
    gateway = router("smg", [*command, "--worker-urls", *(one.url for one in workers)], port)
    for prompt in PROMPTS:
        assert gateway.completion(prompt) == workers[0].completion(prompt, cache_salt="alone")
    asked = "Tell me about blocks. " * 20
    assert gateway.chat(asked) == workers[0].chat(asked, cache_salt="alone")
    assert gateway.chat(asked, stream=True) == workers[0].chat(asked, cache_salt="alone")
    finished = [one.finished() for one in workers]
    assert finished[1] > 0
    assert finished[0] > len(PROMPTS) + 2
