"""An answer that two workers gave over NIXL is the answer that one worker gives, token for token.

The weights make the output depend on every token of the context; test_notice.py shows that these comparisons
would see a wrong KV cache.
"""

from __future__ import annotations

import uuid

import msgspec
import pytest

from loadtests.processes import wait_until
from tests.live.asker import user
from tests.live.pair.rig import COUNT_SECONDS, Pair
from tests.live.rig import words
from tests.live.vocabulary import CONTROL, STUB
from tests.live.worker import BLOCK

PROMPTS = 20
TOKENS = 16
BLOCK_BYTES = BLOCK * 2 * 2 * 32 * 2 * 2
"""Tokens, layers, KV heads, size of a head, keys and values, bytes of a number."""
FIRST_CONTROL = min(CONTROL.values()) - 2


class Expected(msgspec.Struct):
    """A prompt and what the aggregated worker says to it."""

    text: str
    prompt: list[int]
    ids: list[int]


@pytest.fixture(scope="module")
def expected(pair: Pair) -> list[Expected]:
    texts = [words(90 + number, seed=2000 + number) for number in range(PROMPTS)]
    prompts = [pair.vocabulary.user_prompt(text) for text in texts]
    return [
        Expected(text, prompt, pair.aggregated_ids(prompt, TOKENS))
        for text, prompt in zip(texts, prompts, strict=True)
    ]


def moved(pair: Pair) -> float:
    return pair.decode.metric("vllm:nixl_bytes_transferred_sum")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_ids_over_nixl_equal_the_aggregated_ids(pair: Pair, expected: list[Expected], streamed: bool) -> None:
    compared = 0
    for case in expected:
        # A salt of its own, so that neither worker has anything of the prompt: all of it must be handed over.
        answer = pair.pair.ask(
            [user(case.text)],
            streamed=streamed,
            thinking=False,
            max_tokens=TOKENS,
            cache_salt=uuid.uuid4().hex,
        )
        leg = pair.decoded(answer.request_id)
        assert leg.body["token_ids"] == case.prompt, case.text
        assert leg.body["kv_transfer_params"]["do_remote_prefill"] is True
        assert leg.token_ids == case.ids, case.text
        assert answer.prompt_tokens == len(case.prompt) - STUB
        assert answer.completion_tokens == len(case.ids)
        if max(case.ids) < FIRST_CONTROL:  # control tokens do not show in the text
            assert answer.content == pair.vocabulary.text(case.ids), case.text
            compared += 1
    assert compared >= PROMPTS / 2


def test_every_block_of_a_prompt_goes_over_nixl(pair: Pair, expected: list[Expected]) -> None:
    """No more and no fewer bytes than the prompts' blocks have: decode computed none of them itself."""
    before = moved(pair)
    blocks = 0
    for case in expected[:3]:
        salt = uuid.uuid4().hex
        pair.pair.ask([user(case.text)], streamed=True, thinking=False, max_tokens=1, cache_salt=salt)
        blocks += -(-len(case.prompt) // BLOCK)
    wait_until(
        f"{blocks} blocks were counted",
        lambda: moved(pair) - before >= blocks * BLOCK_BYTES,
        COUNT_SECONDS,
    )
    assert moved(pair) - before == blocks * BLOCK_BYTES
