"""Kimi-K3 output of the decode worker in OpenAI's fields: the legs neither lose nor repeat a token."""

from __future__ import annotations

import json

import pytest

from tests.live.asker import user
from tests.live.pair.rig import Pair
from tests.live.test_answers import ARGUMENTS, TEXTS, WEATHER
from tests.live.vocabulary import answer, tool_answer

pytestmark = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_reasoning_and_content(pair: Pair, streamed: bool, text: tuple[str, str]) -> None:
    reasoning, content = text
    script = answer(reasoning, content)
    got = pair.pair.ask([user("What is it?")], streamed=streamed, script=script)
    assert (got.reasoning, got.content, got.calls, got.finish) == (reasoning, content, [], "stop")
    assert got.completion_tokens == len(pair.vocabulary.script(script))
    assert pair.decoded(got.request_id).token_ids == pair.vocabulary.script(script)


def test_tool_call(pair: Pair, streamed: bool) -> None:
    script = tool_answer("I need the weather.", "Let me look.", "get_weather", ARGUMENTS)
    got = pair.pair.ask([user("Will it rain?")], streamed=streamed, script=script, tools=[WEATHER])
    assert (got.reasoning, got.content) == ("I need the weather.", "Let me look.")
    assert [call["name"] for call in got.calls] == ["get_weather"]
    assert json.loads(got.calls[0]["arguments"]) == ARGUMENTS
    assert got.finish == "tool_calls"


def test_cut_at_max_tokens(pair: Pair, streamed: bool) -> None:
    script = answer("One two three four five six.", "Seven.")
    got = pair.pair.ask([user("Count.")], streamed=streamed, script=script, max_tokens=4)
    assert (got.content, got.calls, got.finish, got.completion_tokens) == ("", [], "length", 4)
    assert got.reasoning == pair.vocabulary.text(pair.vocabulary.script(script)[:4])
