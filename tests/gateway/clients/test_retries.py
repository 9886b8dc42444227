"""openai-python's retries and stream errors, against a gateway whose workers fail on request."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.api.test_server import say
from tests.gateway.raw_worker import broken_stream, status, tokens

HI: Any = [{"role": "user", "content": "Hi"}]


def client(url: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", **options)


@pytest.mark.parametrize("code", [429, 503])
async def test_an_overloaded_worker_is_tried_again_by_the_client_until_it_answers(code: int) -> None:
    overloaded = [status(code, b'{"error":{"message":"full"}}')] * 3
    async with gateway([*overloaded, say(65)]) as gw, client(gw.url, max_retries=4) as sdk:
        answer = await sdk.chat.completions.create(model=MODEL, messages=HI)
        assert gw.reservations == 0
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("code", "kind"), [(429, openai.RateLimitError), (503, openai.InternalServerError)])
async def test_one_that_stays_so_is_the_sdks_error_with_a_time_to_retry(
    code: int, kind: type[openai.APIStatusError]
) -> None:
    overloaded = [status(code, b'{"error":{"message":"full"}}')] * 9
    async with gateway(overloaded) as gw, client(gw.url, max_retries=0) as sdk:
        with pytest.raises(kind) as caught:
            await sdk.chat.completions.create(model=MODEL, messages=HI)
    assert int(caught.value.response.headers["Retry-After"]) >= 1


async def test_a_stream_that_breaks_raises_after_what_it_said() -> None:
    async with gateway([broken_stream(tokens(65))], continuation_limit=0) as gw, client(gw.url) as sdk:
        stream = await sdk.chat.completions.create(model=MODEL, messages=HI, stream=True)
        chunks = aiter(stream)
        said = [(await anext(chunks)).choices[0].delta for _ in range(2)]
        with pytest.raises(openai.APIError) as caught:
            await anext(chunks)
    assert said[0].role == "assistant"
    assert caught.value.code == "engine_error"


async def test_a_client_mistake_is_not_tried_again() -> None:
    async with gateway([status(400, b'{"error":{"message":"no"}}')]) as gw, client(gw.url) as sdk:
        with pytest.raises(openai.BadRequestError):
            await sdk.chat.completions.create(model=MODEL, messages=HI)
        assert len(gw.workers[0].requests) == 1


async def test_parse_gives_an_object_of_the_asked_type() -> None:
    class Answer(BaseModel):
        ready: bool

    async with gateway([]) as gw:
        tokenizer = gw.services.preparer.encodings.all[0].tokenizer
        ids = [int(each) for each in tokenizer.encode_text('{"ready":true}')]
    async with gateway([say(*ids)]) as gw, client(gw.url) as sdk:
        answer = await sdk.chat.completions.parse(
            model=MODEL, messages=HI, response_format=Answer, extra_body={"thinking": {"type": "disabled"}}
        )
        sent = gw.workers[0].requests[0][1]
    assert answer.choices[0].message.parsed == Answer(ready=True)
    assert "structured_outputs" in sent["sampling_params"]
