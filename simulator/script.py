"""What a simulated worker says: reasoning and an answer, or a tool call, that depend on the prompt.

The output is what the format's own encoder writes for such a turn once it is history, less the prompt that
came before it. So nothing here knows a model's markup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from parsers.base import Chat, Segment
from simulator.constraint import ANYTHING, Wanted
from simulator.prompt import PromptView, Tool
from simulator.schema import example
from simulator.tokens import Tokens

FILLER = " and so on"
OPENING = " and so on, says a simulated worker"
"""How it goes on with a text."""
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
NO_CODE = "babab-babab"
"""The code word of digest 0."""
_QUESTION = {"role": "user", "content": "?"}


def write_script(
    view: PromptView, tokens: Tokens, wanted: Wanted = ANYTHING, code: str = NO_CODE
) -> list[int]:
    """The whole output for a prompt, its end token included.

    The answer is what a constraint or the prompt itself asks for. `code` stands for what the worker has in
    memory: it goes into the reasoning, or into the answer of a worker that does not reason.
    """
    if wanted.schema is None and view.schema is not None:
        wanted = msgspec.structs.replace(wanted, schema=view.schema)
    if view.channel == "text":
        text = f"{OPENING} about “{view.quote}”, which it knows as {code}."
        return [*tokens.encode(_constrained(view, wanted) or text), tokens.end_id]
    if view.channel != "think":
        view = msgspec.structs.replace(view, quote=f"{view.quote} ({code})")
    content = _constrained(view, wanted)
    turn: dict[str, Any] = {
        "role": "assistant",
        "reasoning_content": _reasoning(view, code),
        "content": _echo(view) if content is None else content,
    }
    tools = [tool for tool in view.tools if wanted.tools is None or tool["name"] in wanted.tools]
    if tools and (wanted.must_call or (content is None and not view.answered)):
        turn |= {"content": content or "", "tool_calls": [_call(view, tools)]}
    return turn_ids(turn, tokens, thinking=view.channel == "think")


def code_word(digest: int) -> str:
    """32 bits of a digest as two words that can be said, such as `lusab-babad`."""
    return "-".join(_word(digest >> shift & 0xFFFF) for shift in (16, 0))


def _word(bits: int) -> str:
    return "".join(
        _VOWELS[bits >> shift & 3] if shift in (10, 4) else _CONSONANTS[bits >> shift & 15]
        for shift in (12, 10, 6, 4, 0)
    )


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


def _call(view: PromptView, tools: Sequence[Tool]) -> dict[str, Any]:
    """A call of the tool that the user names, else of the first."""
    tool = next((tool for tool in tools if tool["name"] in view.quote), tools[0])
    arguments = example(tool.get("parameters") or {"type": "object"}, view.quote or "something")
    text = json.dumps(arguments if isinstance(arguments, dict) else {}, ensure_ascii=False)
    return {"id": "call_0", "type": "function", "function": {"name": tool["name"], "arguments": text}}


def _reasoning(view: PromptView, code: str) -> str:
    return (
        f"The user wrote “{view.quote}”. The prompt has {view.messages} messages and {view.tokens} tokens, "
        f"known as {code}."
    )


def _constrained(view: PromptView, wanted: Wanted) -> str | None:
    """What the content has to be; None for anything."""
    if wanted.schema is not None:
        return json.dumps(example(wanted.schema, view.quote), ensure_ascii=False)
    return wanted.text


def _echo(view: PromptView) -> str:
    return f"You said “{view.quote}”. This is a simulated worker, so here is an echo: {view.quote} ✓"
