"""A constraint in each engine's words. All of them take it from the first generated token on."""

from __future__ import annotations

import re

import msgspec

from parsers.base import Constraint

_ANY_OBJECT = {"type": "object"}


def vllm_structured_outputs(constraint: Constraint) -> bytes:
    """vLLM's `structured_outputs`, as JSON: a sampling parameter, and a field of /v1/completions."""
    value = constraint.value
    if constraint.kind == "structural_tag":
        value = _text(value)
    return msgspec.json.encode({constraint.kind: value})


def sglang_sampling(constraint: Constraint) -> dict[str, bytes]:
    """SGLang's sampling parameter, as JSON by its name; it takes at most one."""
    value = constraint.value
    match constraint.kind:
        case "json":
            return {"json_schema": _quoted(_text(value))}
        case "json_object":
            return {"json_schema": _quoted(_text(_ANY_OBJECT))}
        case "choice":
            return {"regex": _quoted("|".join(f"({re.escape(choice)})" for choice in value))}
        case "grammar":
            return {"ebnf": _quoted(value)}
        case "regex":
            return {"regex": _quoted(value)}
        case "structural_tag":
            return {"structural_tag": _quoted(_text(value))}


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _quoted(text: str) -> bytes:
    return msgspec.json.encode(text)
