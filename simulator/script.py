"""What a simulated worker says: reasoning and an answer, or a tool call, that depend on the prompt.

The markup is K3's output grammar: a channel closes with `<|close|>name<|sep|>` and opens with
`<|open|>name key="value"<|sep|>`, only the markers being control tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from simulator.prompt import PromptView, Tool
from simulator.schema import example
from simulator.tokens import Tokens

FILLER = " and so on"


class ScriptWriter:
    """Collects an output's ids."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.ids: list[int] = []

    def text(self, text: str) -> ScriptWriter:
        """Ordinary text; marker spellings in it stay text."""
        self.ids += self._tokens.encode(text)
        return self

    def open(self, name: str, **attributes: str) -> ScriptWriter:
        """An opening tag."""
        header = name + "".join(f' {key}="{_escape(value)}"' for key, value in attributes.items())
        return self._tag("<|open|>", header)

    def close(self, name: str) -> ScriptWriter:
        """A closing tag."""
        return self._tag("<|close|>", name)

    def end(self) -> ScriptWriter:
        """The token that ends a message."""
        return self._control("<|end_of_msg|>")

    def _tag(self, marker: str, text: str) -> ScriptWriter:
        return self._control(marker).text(text)._control("<|sep|>")

    def _control(self, spelling: str) -> ScriptWriter:
        token_id = self._tokens.control(spelling)
        if token_id is not None:
            self.ids.append(token_id)
        return self


def write_script(view: PromptView, tokens: Tokens, schema: Any = None) -> list[int]:
    """The whole output for a prompt, its end token included.

    `schema` asks for an answer that is JSON of that schema.
    """
    writer = ScriptWriter(tokens)
    if view.channel == "text":
        return writer.text(f" That was a simulated prompt of {view.tokens} tokens.").end().ids
    if view.channel == "think":
        writer.text(_reasoning(view)).close("think").open("response")
    if schema is not None:
        writer.text(_json(example(schema, view.quote)))
    elif not view.tools:
        writer.text(_answer(view))
    writer.close("response")
    if view.tools and schema is None:
        _call(writer, _choose(view), view)
    return writer.close("message").end().ids


def write_call(writer: ScriptWriter, name: str, arguments: dict[str, Any], index: int = 1) -> None:
    """One call inside an open tools channel; `index` counts from 1."""
    writer.open("call", tool=name, index=str(index))
    for key, value in arguments.items():
        body = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        writer.open("argument", key=key, type=_type_name(value)).text(body).close("argument")
    writer.close("call")


def _call(writer: ScriptWriter, tool: Tool, view: PromptView) -> None:
    arguments = example(tool.get("parameters") or {"type": "object"}, view.quote or "something")
    writer.open("tools")
    write_call(writer, tool["name"], arguments if isinstance(arguments, dict) else {})
    writer.close("tools")


def _choose(view: PromptView) -> Tool:
    """The tool that the user names, else the first."""
    named = [tool for tool in view.tools if tool["name"] in view.quote]
    return (named or list(view.tools))[0]


def _reasoning(view: PromptView) -> str:
    return (
        f"The user wrote “{view.quote}”. That is message {view.messages} of a prompt of {view.tokens} tokens."
    )


def _answer(view: PromptView) -> str:
    return f"You said “{view.quote}”. This is a simulated worker, so here is an echo: {view.quote} ✓"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _escape(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


def _type_name(value: Any) -> str:
    names: Sequence[tuple[type | tuple[type, ...], str]] = (
        (bool, "boolean"),
        ((int, float), "number"),
        (str, "string"),
        (dict, "object"),
        (list, "array"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "null")
