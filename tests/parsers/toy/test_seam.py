"""A new model family is its own folder and one line in the registry: the whole service then speaks it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.settings import load_settings
from parsers.registry import FORMATS
from tests.gateway.api.conftest import Gateway, gateway
from tests.gateway.raw_worker import stream, tokens
from tests.parsers.toy.format import ToyFormat, said

TOOLS = [{"type": "function", "function": {"name": "run"}}]


@pytest.fixture(autouse=True)
def registry_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "toy", ToyFormat)


def answer(text: str) -> Any:
    return stream(*(tokens(token) for token in said(text)), tokens(finish="stop"))


def test_the_settings_know_it(tmp_path: Any) -> None:
    file = tmp_path / "gw.toml"
    file.write_text('[[pools]]\nname = "a"\nmodel_format = "toy"')
    pool, *_ = load_settings(object.__new__(type("Flags", (), {})), {}, str(file)).settings.effective_pools()
    assert pool.model_format == "toy"


async def test_prompts_and_answers_go_through_it() -> None:
    async with gateway([answer("hm é)It is {run:[1]}")], model_format="toy") as gw:
        body = await (await gw.chat(tools=TOOLS)).json()
        sent = gw.workers[0].requests[0][1]
    assert sent["token_ids"] == [*b"user>Hiassistant>", 256]
    assert sent["sampling_params"]["stop_token_ids"] == [260]
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm é", "It is ")
    assert message["tool_calls"] == [
        {"id": "toy-0", "type": "function", "function": {"name": "run", "arguments": "[1]"}}
    ]
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["usage"]["prompt_tokens"] == 17
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5


async def test_streams_do_too() -> None:
    async with gateway([answer("hm)yes")], model_format="toy") as gw:
        deltas = await deltas_of(gw)
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "hm"
    assert "".join(delta.get("content") or "" for delta in deltas) == "yes"


async def deltas_of(gw: Gateway) -> list[dict[str, Any]]:
    text = (await (await gw.chat(stream=True)).read()).decode()
    frames = [frame.removeprefix("data: ") for frame in text.split("\n\n")[:-2]]
    choices = [choice for frame in frames for choice in msgspec.json.decode(frame)["choices"]]
    return [choice["delta"] for choice in choices]


async def test_what_it_cannot_express_is_refused_in_its_words() -> None:
    async with gateway([], model_format="toy") as gw:
        refused = await gw.chat(messages=[{"role": "user", "content": [1]}])
        error = (await refused.json())["error"]
    assert (refused.status, error["param"], error["message"]) == (
        400,
        "messages[0].content",
        "only text is supported",
    )
