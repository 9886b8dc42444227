"""A real SGLang behind the gateway: aggregated, and as a pair over NIXL.

The weights make the output depend on every token of the context: equal answers mean an equal KV cache.
"""

from __future__ import annotations

import time
import uuid

import openai
import pytest

from loadtests.processes import wait_until
from tests.live.asker import user
from tests.live.doctor import codes, doctor
from tests.live.rig import words
from tests.live.sglang.rig import SglangFront, SglangRig
from tests.live.vocabulary import CONTROL, STUB
from tests.live.worker import BLOCK, MODEL

PROMPTS = 12
TOKENS = 16
FEWEST_COMPARED = 6
FIRST_CONTROL = min(CONTROL.values()) - 2
SETTLE_SECONDS = 10.0
DEATH_SECONDS = 40.0
"""In which a worker gives up a request whose other half is gone."""
LONG = 1500
"""Tokens of an answer that is left long before its end."""


@pytest.fixture(scope="module")
def expected(rig: SglangRig) -> dict[str, list[int]]:
    """Prompt text to the ids that the aggregated worker says, asked directly."""
    texts = [words(90 + number, seed=3000 + number) for number in range(PROMPTS)]
    return {text: rig.aggregated.greedy(rig.vocabulary.user_prompt(text), TOKENS) for text in texts}


@pytest.fixture(params=["plain", "pair"])
def front(rig: SglangRig, request: pytest.FixtureRequest) -> SglangFront:
    chosen: SglangFront = getattr(rig, request.param)
    return chosen


def settled(rig: SglangRig) -> bool:
    return all(worker.busy == 0 for worker in rig.workers)


def test_the_workers_tell_what_they_are(rig: SglangRig) -> None:
    workers = rig.plain.described() | rig.pair.described()
    assert {name: worker["role"] for name, worker in workers.items()} == {
        "aggregated": "aggregated",
        "prefill": "prefill",
        "decode": "decode",
    }
    for worker in workers.values():
        profile = worker["profile"]
        assert (profile["engine"], profile["version"]) == ("sglang", "0.5.23")
        assert (profile["block_size"], profile["max_num_seqs"], profile["context_length"]) == (BLOCK, 8, 8192)
    assert workers["prefill"]["profile"]["bootstrap"]["port"] == rig.prefill.bootstrap_port
    assert workers["decode"]["feeds"] == []


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_answers_equal_the_worker_asked_directly(
    front: SglangFront, expected: dict[str, list[int]], streamed: bool
) -> None:
    compared = 0
    for text, ids in expected.items():
        # A salt of its own: nothing of the prompt is cached, so that a pair must hand over all of it.
        salt = uuid.uuid4().hex
        answer = front.ask(
            [user(text)], streamed=streamed, thinking=False, max_tokens=TOKENS, cache_salt=salt
        )
        assert answer.prompt_tokens == len(front.vocabulary.user_prompt(text)) - STUB
        assert answer.completion_tokens == len(ids)
        assert answer.cached_tokens == 0
        if max(ids) < FIRST_CONTROL:  # control tokens do not show in the text
            assert answer.content == front.vocabulary.text(ids), text
            compared += 1
    assert compared >= FEWEST_COMPARED


def test_another_prompts_cache_would_be_seen(rig: SglangRig, expected: dict[str, list[int]]) -> None:
    """One changed token changes several answers: a pair that hands over wrong blocks could not pass above."""
    changed = 0
    for text, ids in expected.items():
        prompt = rig.vocabulary.user_prompt(text)
        prompt[len(prompt) // 2] = (prompt[len(prompt) // 2] + 1) % 150_000
        changed += rig.aggregated.greedy(prompt, TOKENS) != ids
    assert changed >= 3, changed


def test_kv_events_place_a_repeated_prefix_and_the_worker_finds_it(front: SglangFront) -> None:
    text = words(200, seed=time.monotonic_ns() % 10_000 + 10_000)
    blocks = front.gateway.metric("kvgateway_router_worker_blocks")
    first = front.ask([user(text)], streamed=True, thinking=False, max_tokens=4)
    prompt = len(front.vocabulary.user_prompt(text))
    wait_until(
        "the index has the prompt's blocks",
        lambda: front.gateway.metric("kvgateway_router_worker_blocks") - blocks >= prompt // BLOCK,
        SETTLE_SECONDS,
        every=0.05,
    )
    exact = front.gateway.metric("kvgateway_router_overlap_exact_total")
    second = front.ask([user(text)], streamed=True, thinking=False, max_tokens=4)
    assert first.cached_tokens == 0
    assert second.cached_tokens == (prompt - 1) // BLOCK * BLOCK
    assert front.gateway.metric("kvgateway_router_overlap_exact_total") == exact + 1


def test_several_choices_come_from_one_request(rig: SglangRig) -> None:
    body = rig.plain.body([user("Say.")], thinking=False, n=2, max_tokens=8)
    completion = rig.plain.client.chat.completions.create(**body)
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 16


def test_a_token_id_that_the_model_does_not_have_reaches_no_worker(front: SglangFront) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt"):
        front.client.completions.create(model=MODEL, prompt=[1, 2, 163_840], max_tokens=1)
    for field in ({"logit_bias": {"163840": 1}}, {"extra_body": {"stop_token_ids": [163_840]}}):
        with pytest.raises(openai.BadRequestError):
            front.client.completions.create(model=MODEL, prompt=[1, 2], max_tokens=1, **field)


def test_a_refusal_of_the_engine_is_the_clients_answer(front: SglangFront) -> None:
    with pytest.raises(openai.BadRequestError, match=r"(?i)grammar"):
        front.client.completions.create(
            model=MODEL, prompt=[1, 2], max_tokens=4, extra_body={"structured_outputs": {"regex": "a+"}}
        )


def test_a_client_that_leaves_stops_the_generation_on_every_worker(
    rig: SglangRig, front: SglangFront
) -> None:
    body = front.body([user(words(50, seed=1))], thinking=False, max_tokens=LONG, stream=True)
    body["extra_body"]["ignore_eos"] = True
    chunks = front.client.chat.completions.create(**body)
    for _ in range(4):
        next(chunks)
    assert any(worker.busy for worker in rig.workers)
    chunks.close()
    wait_until("the workers run nothing", lambda: settled(rig), SETTLE_SECONDS, every=0.05)


def test_a_pair_of_legs_leaves_nothing_behind(rig: SglangRig) -> None:
    wait_until("the workers run nothing", lambda: settled(rig), SETTLE_SECONDS)
    assert rig.pair.gateway.metric("kvgateway_router_reservations") == 0
    assert rig.pair.gateway.metric("kvgateway_router_worker_sequences") == 0


def test_a_prefill_worker_that_dies_leaves_nothing_behind_and_serves_again_after_a_restart(
    rig: SglangRig, expected: dict[str, list[int]]
) -> None:
    before = rig.pair.described()["prefill"]["profile"]["life"]
    rig.prefill.kill()
    with pytest.raises(openai.InternalServerError):
        rig.pair.ask([user("Are you there?")], streamed=False, thinking=False, max_tokens=4)
    wait_until("decode waits for nobody", lambda: rig.decode.busy == 0, DEATH_SECONDS)
    assert rig.pair.gateway.metric("kvgateway_router_reservations") == 0
    rig.prefill.start()
    rig.prefill.wait_ready()
    rig.pair.wait_connected()
    assert rig.pair.described()["prefill"]["profile"]["life"] != before
    text, ids = next((text, ids) for text, ids in expected.items() if max(ids) < FIRST_CONTROL)
    answer = rig.pair.ask([user(text)], streamed=True, thinking=False, max_tokens=TOKENS)
    assert answer.content == rig.vocabulary.text(ids)


def test_the_doctor_finds_nothing_wrong(rig: SglangRig) -> None:
    for front in (rig.plain, rig.pair):
        code, seen = doctor("--config", str(front.config))
        assert (code, codes(seen) - {"decode_without_events"}) == (0, set()), seen["findings"]
        assert all(pair["obstacle"] is None for pair in seen["pairs"])
