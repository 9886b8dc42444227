"""How each request field reaches each worker endpoint: the table of docs/api.md, as data.

Tests hold every cell against what a worker is really sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, Field, Goes
from gateway.engines.parameters import GENERATE_NAMES, SGLANG_NAMES

ENDPOINTS: Mapping[str, str] = {
    "generate": "vLLM `/inference/v1/generate`",
    "completions": "vLLM `/v1/completions`",
    "sglang": "SGLang `/generate`",
    "openai": "pass-through",
}
GATEWAY = "gateway"
"""The gateway acts on it; the worker is not told."""
IDS = "token ids"
"""It is part of the prompt that the worker is sent as ids."""
GRAMMAR = "grammar"
"""It becomes the worker's constraint on the answer."""
NO_EFFECT = "no effect"
DROPPED = "dropped"
REFUSED = "400"
ELSEWHERE = "another worker, or 400"

_LIMIT = {
    "generate": "sampling_params.max_tokens",
    "completions": "max_tokens",
    "sglang": "sampling_params.max_new_tokens",
}
_LOGPROBS = {
    "generate": "sampling_params.logprobs",
    "completions": "logprobs",
    "sglang": "top_logprobs_num",
}
_CARRIED: Mapping[str, str | Mapping[str, str]] = {
    "messages": IDS,
    "tools": f"{IDS}, {GRAMMAR}",
    "tool_choice": f"{IDS}, {GRAMMAR}",
    "response_format": f"{IDS}, {GRAMMAR}",
    "structured_outputs": GRAMMAR,
    "reasoning_effort": IDS,
    "thinking": IDS,
    "chat_template_kwargs": IDS,
    "add_generation_prompt": IDS,
    "parallel_tool_calls": GRAMMAR,
    "prompt": IDS,
    "max_tokens": _LIMIT,
    "max_completion_tokens": _LIMIT,
    "logprobs": _LOGPROBS,
    "top_logprobs": _LOGPROBS,
    "n": {"generate": "sampling_params.n", "completions": "n", "sglang": "sampling_params.n"},
    "model": {"generate": "model", "completions": "model"},
}


def reach(name: str, field: Field, endpoint: str) -> str:
    """A path in the worker's body, or one of the words above."""
    if field.goes is Goes.STEERING:
        return DROPPED
    if endpoint == "openai":
        return name
    if field.goes is Goes.REFUSED:
        return REFUSED
    if field.goes is Goes.NOWHERE:
        return NO_EFFECT
    if field.goes is Goes.TOP:
        return name
    if field.goes is Goes.SAMPLING:
        return _parameter(name, endpoint)
    carried = _CARRIED.get(name, GATEWAY)
    return carried if isinstance(carried, str) else carried.get(endpoint, GATEWAY)


def _parameter(name: str, endpoint: str) -> str:
    if endpoint == "completions":
        return name
    names: Mapping[str, str | None] = GENERATE_NAMES if endpoint == "generate" else SGLANG_NAMES
    theirs = names.get(name, name)
    return ELSEWHERE if theirs is None else f"sampling_params.{theirs}"


def rows() -> list[list[str]]:
    """Field, request (chat, completion or both), and a cell for each endpoint, for people to read."""
    table = []
    for name in sorted(CHAT_FIELDS | COMPLETION_FIELDS):
        chat, completion = _of(CHAT_FIELDS, name), _of(COMPLETION_FIELDS, name)
        field = chat or completion
        assert field is not None
        kind = "both" if chat and completion else "chat" if chat else "completion"
        table.append([f"`{name}`", kind, *(_shown(reach(name, field, endpoint)) for endpoint in ENDPOINTS)])
    return table


def _of(table: Mapping[str, Field], name: str) -> Field | None:
    """None where the field is only the other request's."""
    field = table[name]
    foreign = field.goes is Goes.NOWHERE and any(
        other[name].goes is Goes.GATEWAY for other in (CHAT_FIELDS, COMPLETION_FIELDS)
    )
    return None if foreign else field


_WORDS = (GATEWAY, IDS, GRAMMAR, f"{IDS}, {GRAMMAR}", NO_EFFECT, DROPPED, REFUSED, ELSEWHERE)


def _shown(cell: str) -> str:
    return cell if cell in _WORDS else f"`{cell}`"
