"""Chats made up from the parts that clients send, right and damaged."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from parsers.base import Chat
from tests.parsers.kimi_k3.material import MARKERS

_WORDS = ("<|kimi_image_placeholder|>", "think", " ", "\n", "é🙂", '"', "&", "$x", "_", "12")
TEXT = st.lists(st.characters() | st.sampled_from([*MARKERS, *_WORDS]), max_size=5).map("".join)
NAMES = st.sampled_from(["run", "walk", "$x", 'q"', "<a&b>"])
IDS = st.sampled_from(["1", "2", "run:0", "walk:1", None])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
LITERALS = st.sampled_from(
    [
        "",
        " ",
        "{",
        "{}",
        '{"a": 1e2, "a": [8,20], "b": "x"} rest',
        '{"a": NaN}',
        '{"a": "\x01"}',
        "[1]",
        "null",
        "7",
    ]
)
ARGUMENTS = LITERALS | JSON | st.dictionaries(TEXT, JSON, max_size=3).map(json.dumps)
PARTS = st.lists(
    st.one_of(
        TEXT.map(lambda text: {"type": "text", "text": text}),
        st.tuples(st.integers(1, 9_999), st.integers(1, 9_999)).map(
            lambda size: {"type": "image_url", "image_url": {"url": "data:,"}, "image_size": list(size)}
        ),
        st.just({"type": "image_url", "image_url": {"url": "data:,"}}),
        JSON,
    ),
    max_size=3,
)
CONTENT = st.one_of(TEXT, TEXT, st.none(), PARTS)


def _message(role: str, **members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"role": st.just(role)}, optional={"name": TEXT, "content": CONTENT, **members}
    )


CALLS = st.lists(
    st.fixed_dictionaries(
        {"function": st.fixed_dictionaries({"name": NAMES}, optional={"arguments": ARGUMENTS})},
        optional={"id": IDS},
    )
    | JSON,
    max_size=3,
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function")},
        optional={
            "function": st.fixed_dictionaries({"name": NAMES}, optional={"parameters": JSON, "strict": JSON})
        },
    )
    | JSON,
    max_size=3,
)
MESSAGES = st.lists(
    st.one_of(
        _message("user"),
        _message("system", tools=TOOLS | JSON),
        _message("developer"),
        _message("tool", tool_call_id=IDS, tool=NAMES, id=IDS),
        _message(
            "assistant",
            reasoning_content=TEXT | JSON,
            reasoning=TEXT,
            tool_calls=CALLS | JSON,
            partial=st.booleans(),
        ),
        JSON,
    ),
    max_size=6,
)
EFFORTS = st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max", "much", None])
SWITCHES = st.one_of(
    st.none(),
    st.booleans(),
    st.fixed_dictionaries(
        {}, optional={"type": st.sampled_from(["enabled", "disabled", "x"]), "effort": EFFORTS, "keep": JSON}
    ),
)
_FORMAT_TYPES = st.sampled_from(["text", "json_object", "json_schema"])
FORMATS = st.none() | st.fixed_dictionaries({}, optional={"type": _FORMAT_TYPES | JSON, "json_schema": JSON})
CHOICES = st.one_of(
    st.sampled_from(
        [None, "none", "auto", "required", "x", {"type": "function", "function": {"name": "run"}}]
    ),
    JSON,
)
KWARGS = st.fixed_dictionaries(
    {},
    optional={
        "thinking": JSON,
        "enable_thinking": JSON,
        "thinking_effort": EFFORTS,
        "reasoning_effort": EFFORTS,
        "add_generation_prompt": st.booleans(),
        "image_prompts": JSON,
    },
)
CHATS = st.builds(
    Chat,
    messages=MESSAGES,
    tools=TOOLS | st.none(),
    tool_choice=CHOICES,
    response_format=FORMATS,
    reasoning_effort=EFFORTS,
    thinking=SWITCHES,
    parallel_tool_calls=st.none() | st.booleans(),
    template_kwargs=KWARGS,
    strict_efforts=st.booleans(),
)
