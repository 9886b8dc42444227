"""Completions of several prompts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.api.test_server import USAGE, error_of, frames, say
from tests.gateway.raw_worker import Answer, broken_stream, endless_stream, status, stream, tokens


def echoing(count: int) -> list[Answer]:
    """A worker whose answer is its prompt's first id."""

    async def answer(writer: Any, body: bytes) -> None:
        first = int(body.split(b'"token_ids":[')[1].split(b",")[0].split(b"]")[0])
        await stream(tokens(first), tokens(finish="stop"), USAGE)(writer, body)

    return [answer] * count


PROMPTS = [[40, 1], [41, 1, 1], [42]]


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPTS, **fields}


@pytest.mark.parametrize("streamed", [False, True])
async def test_each_prompt_has_its_choices_in_order_and_usage_is_the_sum(streamed: bool) -> None:
    async with gateway(echoing(2), echoing(1)) as gw:
        decode = gw.services.preparer.encodings.all[0].tokenizer.decode
        options = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        response = await gw.post("/v1/completions", asked(**options))
        chunks = await frames(response) if streamed else [await response.json()]
        assert gw.reservations == 0
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [decode([40]), decode([41]), decode([42])]
    assert (chunks[-1]["usage"]["prompt_tokens"], chunks[-1]["usage"]["completion_tokens"]) == (6, 3)
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_lists_of_texts_are_prompts_and_each_is_echoed_before_its_own_answer() -> None:
    async with gateway([say(65), say(65)]) as gw:
        body = asked(prompt=["One", "Two"], echo=True, stream=True)
        chunks = await frames(await gw.post("/v1/completions", body))
        decode = gw.services.preparer.encodings.all[0].tokenizer.decode
    for index, text in ((0, "One"), (1, "Two")):
        own = [c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(own) == text + decode([65])


async def test_several_choices_a_prompt_are_numbered_prompt_after_prompt() -> None:
    both = stream(
        tokens(40, index=0),
        tokens(41, index=1),
        tokens(index=0, finish="stop"),
        tokens(index=1, finish="stop"),
    )
    async with gateway([both, both]) as gw:
        body = await (await gw.post("/v1/completions", asked(prompt=["a", "b"], n=2))).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_that_no_worker_takes_fails_all_and_leaves_nothing_behind(streamed: bool) -> None:
    refusal = status(400, b'{"error":{"message":"no"}}')
    async with gateway([endless_stream(), refusal, endless_stream()]) as gw:
        response = await gw.post("/v1/completions", asked(stream=streamed))
        assert (response.status, (await error_of(response))["message"]) == (400, "no")
        assert gw.reservations == 0


async def test_a_failure_after_the_first_event_is_an_error_frame_of_the_one_stream() -> None:
    async with gateway([broken_stream(tokens(40)), endless_stream(tokens(41))]) as gw:
        response = await gw.post("/v1/completions", asked(prompt=PROMPTS[:2], stream=True))
        chunks = await frames(response)
        assert gw.reservations == 0
    assert response.status == 200
    assert chunks[-1]["error"]["code"] == "engine_error"


@pytest.mark.parametrize(
    "prompt", [[], [[]], [["a"]], ["a", [1]], [1, "a"], [[1], [99999999]], ["x"] * 1025, [True], [[1.5]]]
)
async def test_prompts_that_are_none_are_refused_by_name(prompt: Any) -> None:
    async with gateway([]) as gw:
        response = await gw.post("/v1/completions", asked(prompt=prompt))
        assert (response.status, (await error_of(response))["param"]) == (400, "prompt")
