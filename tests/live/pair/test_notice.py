"""A wrong KV cache changes the output: what test_equality.py compares could not be equal by luck.

The legs are asked directly, since the gateway would not send such parameters. The decode worker takes them
all and answers with status 200; nothing but the text tells.
"""

from __future__ import annotations

import pytest

from loadtests.processes import wait_until
from tests.live.pair.rig import Pair
from tests.live.pair.workers import LEASE_SECONDS
from tests.live.rig import words
from tests.live.worker import BLOCK

PROMPTS = 8
PROMPT_TOKENS = 220
FEWEST_CHANGED = PROMPTS * 3 // 4
EXPIRY_SECONDS = LEASE_SECONDS + 20.0
FILLER_TOKENS = 6000


@pytest.fixture(scope="module")
def prompts(pair: Pair) -> list[list[int]]:
    """All of one length, so that the parameters of one fit another."""
    texts = [words(100, seed=3000 + number) for number in range(PROMPTS)]
    return [pair.vocabulary.user_prompt(text)[:PROMPT_TOKENS] for text in texts]


@pytest.fixture(scope="module")
def right(pair: Pair, prompts: list[list[int]]) -> list[list[int]]:
    return [pair.aggregated_ids(prompt) for prompt in prompts]


def changed(one: list[list[int]], other: list[list[int]]) -> int:
    return sum(mine != yours for mine, yours in zip(one, other, strict=True))


def test_a_prompts_own_parameters_give_the_aggregated_ids(
    pair: Pair, prompts: list[list[int]], right: list[list[int]]
) -> None:
    decoded = [pair.decode.decode(prompt, pair.prefill.prefill(prompt)) for prompt in prompts]
    assert decoded == right


def test_another_prompts_parameters_change_the_ids(
    pair: Pair, prompts: list[list[int]], right: list[list[int]]
) -> None:
    foreign = [pair.prefill.prefill(prompt) for prompt in (*prompts[1:], prompts[0])]
    decoded = [pair.decode.decode(prompt, held) for prompt, held in zip(prompts, foreign, strict=True)]
    assert changed(decoded, right) >= FEWEST_CHANGED


def test_parameters_of_freed_blocks_change_the_ids(
    pair: Pair, prompts: list[list[int]], right: list[list[int]]
) -> None:
    """The lease runs out, other prompts take the blocks, and decode reads those without a complaint."""
    before = expired(pair)
    held = [pair.prefill.prefill(prompt) for prompt in prompts]
    wait_until("the leases ran out", lambda: expired(pair) - before >= PROMPTS, EXPIRY_SECONDS)
    for number in range(-(-pair.prefill.blocks * BLOCK // FILLER_TOKENS)):
        filler = [(7 * number + 13 * place) % 150_000 for place in range(FILLER_TOKENS)]
        pair.prefill.greedy(filler, 1)
    decoded = [pair.decode.decode(prompt, mine) for prompt, mine in zip(prompts, held, strict=True)]
    assert changed(decoded, right) >= FEWEST_CHANGED


def expired(pair: Pair) -> float:
    return pair.prefill.metric("vllm:nixl_num_kv_expired_reqs_total")
