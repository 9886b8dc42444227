"""Images in chats, from the request to what workers are sent."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Any

import numpy as np
import pytest

from gateway.serving.request import Fields
from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.api.test_server import error_of, say
from tests.gateway.media.test_sizes import gif, png

PICTURE = png(40, 30)
URI = f"data:image/png;base64,{b64encode(PICTURE).decode()}"


def asking(*urls: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}, "image_size": [9, 9]} for url in urls]
    content = [{"type": "text", "text": "What is it?"}, *parts]
    return {"messages": [{"role": "user", "content": content}]}


async def test_an_image_goes_to_the_worker_with_its_size_in_the_prompt_and_an_id_of_ours() -> None:
    async with gateway([say(65)], images="forwarded") as gw:
        response = await gw.chat(**asking(URI))
        sent = gw.workers[0].requests[0][1]
        text = gw.services.preparer.encodings.all[0].tokenizer.decode(sent["token_ids"])
    assert response.status == 200
    assert "<|media_begin|>image 40x30<|media_content|><|media_pad|><|media_end|>" in text
    digest = hashlib.sha256(PICTURE).hexdigest()
    assert sent["content_parts"] == [{"type": "image_url", "url": URI, "uuid": digest}]


async def test_the_type_that_is_forwarded_is_that_of_the_bytes() -> None:
    async with gateway([say(65)], images="forwarded") as gw:
        await gw.chat(**asking(f"data:text/html;base64,{b64encode(gif(4, 3)).decode()}"))
        sent = gw.workers[0].requests[0][1]
    assert sent["content_parts"][0]["url"].startswith("data:image/gif;base64,")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/x.png",
        "data:image/png;base64,!!",
        "data:image/png;base64,AAAA",
        "data:",
        f"data:image/gif;base64,{b64encode(gif(20_000, 20_000)).decode()}",
        "ftp://x/y",
        "",
        None,
        5,
    ],
)
async def test_an_image_that_cannot_be_used_is_refused_with_its_place(url: Any) -> None:
    async with gateway([], images="forwarded") as gw:
        response = await gw.chat(**asking(URI, url))
        error = await error_of(response)
    assert (response.status, error["param"], error["code"]) == (
        400,
        "messages[0].content[2]",
        "invalid_image",
    )
    assert "127.0.0.1" not in error["message"]


async def test_images_are_bounded_together_and_in_number() -> None:
    async with gateway([], images="forwarded", max_image_bytes=2 * len(PICTURE) - 1) as gw:
        large, many = await gw.chat(**asking(URI, URI)), await gw.chat(**asking(*[URI] * 65))
        assert (large.status, many.status) == (400, 400)


async def test_a_pool_of_text_alone_refuses_images() -> None:
    async with gateway([]) as gw:
        response = await gw.chat(**asking(URI))
        error = await error_of(response)
    assert (response.status, error["param"], error["code"]) == (
        400,
        "messages[0].content[1]",
        "unsupported_parameter",
    )


async def test_an_endpoint_without_a_place_for_images_is_not_used_for_them() -> None:
    async with gateway([], endpoint="completions", images="forwarded") as gw:
        response = await gw.chat(**asking(URI))
        assert (response.status, (await error_of(response))["code"]) == (400, "unsupported_parameter")


async def test_overlap_counts_up_to_the_first_image_unless_it_is_the_same() -> None:
    other = f"data:image/gif;base64,{b64encode(gif(40, 30)).decode()}"
    async with gateway([], images="forwarded") as gw:
        prompts = []
        for url in (URI, other, URI):
            fields = {"model": MODEL, **asking(url)}
            _, prompt = await gw.services.preparer.encode_chat(_fields(fields))
            prompts.append(prompt)
    first, second, again = prompts
    assert first.ids_json == second.ids_json
    assert np.array_equal(first.ids, again.ids)
    differ = np.flatnonzero(first.ids != second.ids)
    assert differ[0] == np.flatnonzero(first.ids != np.array(first.id_list()))[0] > 10


def _fields(values: dict[str, Any]) -> Any:
    return Fields(values, {}, {})
