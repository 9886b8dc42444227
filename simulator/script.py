"""What a simulated worker says: reasoning and an answer, or a tool call, that depend on the prompt.

The output is what the format's own encoder writes for such a turn once it is history, less the prompt that
came before it. So nothing here knows a model's markup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from parsers.base import Chat, Segment
from simulator.prompt import PromptView, Tool
from simulator.schema import example
from simulator.tokens import Tokens

FILLER = " and so on"
_QUESTION = {"role": "user", "content": "?"}


def write_script(view: PromptView, tokens: Tokens, schema: Any = None) -> list[int]:
    """The whole output for a prompt, its end token included.

    `schema` asks for an answer that is JSON of that schema; so can the prompt itself.
    """
    if view.channel == "text":
        return [*tokens.encode(f" and so on, says a simulated worker about “{view.quote}”."), tokens.end_id]
    schema = view.schema if schema is None else schema
    turn: dict[str, Any] = {
        "role": "assistant",
        "reasoning_content": _reasoning(view),
        "content": _content(view, schema),
    }
    if view.tools and schema is None:
        turn |= {"content": "", "tool_calls": [_call(view)]}
    return turn_ids(turn, tokens, thinking=view.channel == "think")


def turn_ids(turn: dict[str, Any], tokens: Tokens, *, thinking: bool) -> list[int]:
    """Ids that a model gives to say `turn`, an assistant's message, its end token included."""
    asked = Chat(messages=[_QUESTION], thinking=thinking)
    said = Chat(
        messages=[_QUESTION, turn], thinking=thinking, template_kwargs={"add_generation_prompt": False}
    )
    model_format = tokens.model_format
    prompt, whole = model_format.encode(asked).segments, model_format.encode(said).segments
    return tokens.encode_segments(_after(prompt, whole))


def _after(prompt: Sequence[Segment], whole: Sequence[Segment]) -> Sequence[Segment]:
    """The rest of `whole`, which begins with the opened answer that ends `prompt`."""
    assert list(whole[: len(prompt)]) == list(prompt)
    return whole[len(prompt) :]


def _call(view: PromptView) -> dict[str, Any]:
    tool = _choose(view)
    arguments = example(tool.get("parameters") or {"type": "object"}, view.quote or "something")
    text = json.dumps(arguments if isinstance(arguments, dict) else {}, ensure_ascii=False)
    return {"id": "call_0", "type": "function", "function": {"name": tool["name"], "arguments": text}}


def _choose(view: PromptView) -> Tool:
    """The tool that the user names, else the first."""
    named = [tool for tool in view.tools if tool["name"] in view.quote]
    return (named or list(view.tools))[0]


def _reasoning(view: PromptView) -> str:
    return f"The user wrote “{view.quote}”. The prompt has {view.messages} messages and {view.tokens} tokens."


def _content(view: PromptView, schema: Any) -> str:
    if schema is not None:
        return json.dumps(example(schema, view.quote), ensure_ascii=False)
    return f"You said “{view.quote}”. This is a simulated worker, so here is an echo: {view.quote} ✓"
