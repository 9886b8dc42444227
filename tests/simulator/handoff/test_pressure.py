"""Memory stays right when blocks are scarce: preemption, eviction, small steps, shared prefixes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Pair = Any  # conftest's, which cannot be imported
StartPair = Callable[..., Awaitable[Pair]]
GROUPS = ["attention", "mla+mamba*2", "attention+sliding_window:24", "mla+mamba+sliding_window:40"]


def conversations(seed: int) -> list[list[int]]:
    """Prompts that share prefixes, in turns of growing length."""
    dice = random.Random(seed)
    found = []
    for _ in range(6):
        ids = [dice.randrange(200) for _ in range(dice.randrange(10, 60))]
        for _ in range(4):
            found.append(list(ids))
            ids += [dice.randrange(200) for _ in range(dice.randrange(1, 50))]
    dice.shuffle(found)
    return found


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("step", [40, 8192])
async def test_aggregated(pair: StartPair, groups: str, step: int) -> None:
    workers = await pair(kv_groups=groups, block_size=8, num_blocks=120, max_num_batched_tokens=step)
    prompts = conversations(1)
    expected = [await workers.alone(ids, max_tokens=200) for ids in prompts]

    async def ask(ids: list[int]) -> str:
        status, answer = await workers.decode(ids, None, max_tokens=200)
        assert status == 200
        text: str = answer["choices"][0]["text"]
        return text

    assert await asyncio.gather(*map(ask, prompts)) == expected
    assert await workers.violations() == 0
    state = await workers.state(workers.decode_worker)
    assert (state["running"], state["waiting"], state["kv_cache_usage"]) == (0, 0, 0)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("step", [24, 8192])
async def test_disaggregated(pair: StartPair, groups: str, step: int) -> None:
    workers = await pair(kv_groups=groups, block_size=8, num_blocks=120, max_num_batched_tokens=step)
    prompts = conversations(2)
    expected = [await workers.alone(ids, max_tokens=200) for ids in prompts]
    texts = await asyncio.gather(*(workers.both(ids, max_tokens=200) for ids in prompts))
    assert texts == expected
    assert await workers.violations() == 0
    for worker in (workers.prefill_worker, workers.decode_worker):
        await workers.until(worker, running=0, waiting=0, pinned_requests=0, kv_cache_usage=0.0)


async def test_preemption_happens_and_does_no_harm(pair: StartPair) -> None:
    workers = await pair(block_size=8, num_blocks=64, decode={"tokens_per_step": 3})
    prompts = conversations(3)
    expected = [await workers.alone(ids, max_tokens=250) for ids in prompts]
    texts = await asyncio.gather(*(workers.both(ids, max_tokens=250) for ids in prompts))
    assert texts == expected
    assert await workers.violations() == 0
    found = await workers.metrics(workers.decode_worker)
    assert sum(value for name, value in found.items() if name.startswith("vllm:num_preemptions_total")) > 0
