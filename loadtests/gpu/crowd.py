"""Many clients at once, whose prompts share prefixes: where they go, and whether their answers are right."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from loadtests.gpu.client import Answer, Client, body, direct, random_ids
from loadtests.gpu.front import Front
from loadtests.gpu.record import Record, median_ms
from loadtests.gpu.shapes import spelled
from loadtests.gpu.workers import Worker

CLIENTS = 16
TURNS = 6
PREFIXES = 8
PREFIX_TOKENS = 8_000
OWN_TOKENS = 300


class _Said(msgspec.Struct):
    prompt: list[int]
    prefix: int
    answer: Answer


def crowd(front: Front, policy: str, seed: int, workers: Mapping[str, Worker], record: Record) -> None:
    """Each client takes its turns one after another; the prefixes belong to `seed`."""
    prefixes = [random_ids(PREFIX_TOKENS, seed=seed + number) for number in range(PREFIXES)]
    before = {name: worker.metrics() for name, worker in workers.items()}
    with ThreadPoolExecutor(CLIENTS) as pool:
        for first in [pool.submit(front.client().post, body(prefix, 1)) for prefix in prefixes]:
            first.result()
        turns = pool.map(lambda number: _turns(front, prefixes, seed + number), range(CLIENTS))
        said = [each for client in turns for each in client]
    prefilled = {
        name: worker.metrics().get(QUERIES, 0.0) - before[name].get(QUERIES, 0.0)
        for name, worker in workers.items()
        if worker.seat.role == "prefill"
    }
    plain = Client(workers["a0"].url)
    checked = said[:: len(said) // CLIENTS]
    equal = sum(each.answer.text == spelled(plain.post(direct(each.prompt)).ids) for each in checked)
    cached = sum(each.answer.cached or 0 for each in said)
    firsts = [each.answer.first_seconds for each in said]
    record(
        "crowd",
        policy=policy,
        requests=len(said),
        errors=[each.answer.error for each in said if each.answer.error],
        answers_checked=len(checked),
        answers_equal=equal,
        shared_tokens_cached=round(cached / (len(said) * PREFIX_TOKENS), 4),
        first_token_ms=median_ms(firsts),
        first_token_p95_ms=round(statistics.quantiles(firsts, n=20)[-1] * 1e3, 1),
        prompt_tokens_by_prefill_worker=prefilled,
        router={
            name: value
            for name, value in front.metrics().items()
            if name.startswith("kvgateway_router_overlap_") and name.endswith("_total")
        },
    )


QUERIES = "vllm:prefix_cache_queries_total"


def _turns(front: Front, prefixes: list[list[int]], seed: int) -> list[_Said]:
    client, chance = front.client(), random.Random(seed)
    said = []
    for turn in range(TURNS):
        prefix = chance.randrange(len(prefixes))
        prompt = [*prefixes[prefix], *random_ids(OWN_TOKENS, seed=seed * 100 + turn)]
        said.append(_Said(prompt, prefix, client.post(body(prompt))))
    return said
