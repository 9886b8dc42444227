"""The collected outputs, generated token by token by a real engine, come back as the cases say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.asker import Answer, user
from tests.live.k3.rig import K3Rig
from tests.live.vocabulary import CONTROL
from tests.parsers.kimi_k3.material import shared_cases
from tests.parsers.kimi_k3.test_shared_cases import as_json, expected_of

END = CONTROL["<|end_of_msg|>"]


def script_of(case: dict[str, Any], k3: K3Rig) -> list[int]:
    """What the engine is made to say; it stops at an end of message, else at its limit of tokens."""
    vocabulary = k3.free.vocabulary
    ids: list[int] = []
    for text, is_control in case.get("tokens") or [[case["output"], True]]:
        ids += vocabulary.script(text) if is_control else vocabulary.ordinary(text)
    stops = case["engine_finish"] == "stop" and END not in ids
    return [*ids, END] if stops else ids


def ask(k3: K3Rig, case: dict[str, Any], streamed: bool) -> Answer:
    ids = script_of(case, k3)
    extra = {
        "chat_template_kwargs": {"thinking": case["thinking"]},
        "vllm_xargs": {"script_ids": ids},
    }
    fields: dict[str, Any] = {"extra_body": extra, "max_tokens": len(ids)}
    messages: list[dict[str, Any]] = [user("Hi")]
    if case.get("system_tools"):
        messages.insert(0, {"role": "system", "tools": case["system_tools"]})
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        if case.get(name) is not None:
            fields[name] = case[name]
    return k3.free.ask(messages, streamed=streamed, **fields)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", shared_cases("reasoning", "tool", "stream"))
def test_a_collected_output_comes_back_right(k3: K3Rig, case: dict[str, Any], streamed: bool) -> None:
    if case["engine_finish"] not in ("stop", "length"):
        pytest.skip(f"an engine cannot be made to finish with {case['engine_finish']}")
    answer = ask(k3, case, streamed)
    reasoning, content, calls, finish = expected_of(case)
    said = [(call["name"], as_json(call["arguments"])) for call in answer.calls]
    if streamed and case.get("allow_reasoning_dup"):
        answer.reasoning = reasoning  # it was streamed before the model took it back
    if streamed and case["engine_finish"] == "length":
        said = said[: len(calls)]  # a call that is cut has been streamed up to there
    assert (answer.reasoning, answer.content, said, answer.finish) == (reasoning, content, calls, finish)
