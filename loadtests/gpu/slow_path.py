"""Where requests go when a pair and a plain worker could serve them, and what the gateway says of the link.

All workers are labelled as an operator would label GPUs of one host that NVLink connects. For
the decode worker with `UCX_TLS=^cuda_ipc` the labels are wrong: every transfer still succeeds, slowly.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from loadtests.gpu.client import body, random_ids
from loadtests.gpu.front import Front
from loadtests.gpu.record import Record, median_ms
from loadtests.gpu.workers import Worker

LABELS = {"host": "one", "nvlink": "true"}
TOKENS = 16_000
CLIENTS = 6
TURNS = 4
"""Of each client in each phase."""
LEARNING_SECONDS = 12.0
"""Between the phases: the gateway reads its workers' counters every ten seconds."""
PREFILL_LEGS = "kvgateway_prefill_leg_seconds_count"


def where_requests_go(front: Front, decode: Worker, seed: int, record: Record) -> None:
    """Fresh prompts by several clients at once, in two phases: before and after transfers are counted."""
    tls = decode.seat.tls
    for phase in range(2):
        before, began = front.metrics().get(PREFILL_LEGS, 0.0), time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            turns = pool.map(
                lambda number: _turns(front, seed + number), range(10 * phase, 10 * phase + CLIENTS)
            )
            firsts = [first for client in turns for first in client]
        record(
            "where",
            tls=tls,
            phase=phase,
            prompt_tokens=TOKENS,
            requests=len(firsts),
            by_the_pair=front.metrics().get(PREFILL_LEGS, 0.0) - before,
            first_token_ms=median_ms(firsts),
            slowest_first_token_ms=round(max(firsts) * 1e3, 1),
            seconds=round(time.perf_counter() - began, 2),
        )
        time.sleep(LEARNING_SECONDS)
    record(
        "where_knows",
        tls=tls,
        pairs=front.workers().get("pairs"),
        next_legs=front.explain(body(random_ids(TOKENS, seed=seed + 60_000), 4))["legs"],
        link=link_check(front, decode),
    )


def _turns(front: Front, number: int) -> list[float]:
    client, firsts = front.client(), []
    for turn in range(TURNS):
        answer = client.post(body(random_ids(TOKENS, seed=50_000 + 100 * number + turn), 4))
        assert not answer.error, answer.error
        firsts.append(answer.first_seconds)
    return firsts


def link_check(front: Front, worker: Worker) -> Mapping[str, float]:
    """Seconds that the gateway now expects of all the transfers so far, and those that the worker counted."""
    counted = transfers(worker)
    (pair,) = [each for each in front.workers()["pairs"] if "cost" in each]
    cost = pair["cost"]
    expected = (
        counted["transfers"] * cost["t0"]
        + counted["descriptors"] * cost["descriptor"]
        + counted["mb"] * 1e6 / cost["bandwidth"]
    )
    seconds = pair["factor"] * expected
    return {"expected": round(seconds, 4), "ratio": round(seconds / counted["seconds"], 3), **counted}


def transfers(worker: Worker) -> Mapping[str, float]:
    """What a decode worker counted of the KV caches that it read."""
    counters = worker.metrics()
    nbytes, seconds, count = (
        counters.get(f"vllm:nixl_{name}", 0.0)
        for name in ("bytes_transferred_sum", "xfer_time_seconds_sum", "xfer_time_seconds_count")
    )
    return {
        "transfers": count,
        "mb": round(nbytes / 1e6, 1),
        "seconds": round(seconds, 4),
        "gb_a_second": round(nbytes / seconds / 1e9, 3) if seconds else 0.0,
        "descriptors": counters.get("vllm:nixl_num_descriptors_sum", 0.0),
        "failed": counters.get("vllm:nixl_num_failed_transfers_total", 0.0),
    }
