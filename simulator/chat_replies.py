"""Chat bodies and chunks, field for field in vLLM 0.32.0's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parsers.answer import Answer
from simulator.chat_choice import Delta, new_call_id
from simulator.generation import Step
from simulator.replies import Json, counts


def chunk_head(chat_id: str, created: int, model: str, choices: list[Json]) -> Json:
    """What every chunk begins with."""
    return {
        "id": chat_id,
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "choices": choices,
    }


def role_choice(index: int) -> Json:
    """The choice of the chunk that opens an answer."""
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def chunk_choice(
    step: Step, delta: Json, logprobs: Json | None, finish_reason: str | None, ids: Sequence[int] | None
) -> Json:
    """The choice of a chunk with output."""
    choice: Json = {
        "index": step.generation.index,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
    if step.last:
        choice["stop_reason"] = step.generation.plan.stop_reason
    return choice | {"token_ids": ids}


def delta_fields(delta: Delta, *, shows_reasoning: bool) -> Json:
    """A chunk's delta. Where reasoning is hidden, its key stays and is null."""
    fields: Json = {}
    if delta.content or delta.calls:
        fields["content"] = delta.content or None
    if delta.reasoning and shows_reasoning:
        fields["reasoning"] = delta.reasoning
    elif fields and not shows_reasoning:
        fields["reasoning"] = None
    if delta.calls:
        fields["tool_calls"] = [
            {
                "id": new_call_id(),
                "type": "function",
                "index": call.index,
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in delta.calls
        ]
    return fields


def message(answer: Answer, *, shows_reasoning: bool, empty: str | None) -> Json:
    """A whole answer's message; `empty` is the content of one that says nothing."""
    fields: Json = {
        "role": "assistant",
        "content": answer.content or empty,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if answer.tool_calls:
        fields["tool_calls"] = [
            {
                "id": new_call_id(),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ]
    return fields | {"reasoning": (answer.reasoning or None) if shows_reasoning else None}


def body_choice(
    step: Step, said: Json, logprobs: Json | None, finish_reason: str, ids: Sequence[int] | None
) -> Json:
    """A choice of a whole answer."""
    return {
        "index": step.generation.index,
        "message": said,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": step.generation.plan.stop_reason,
        "token_ids": ids,
        "routed_experts": None,
    }


def chunk_usage(prompt_tokens: int, completion_tokens: int, reasoning_tokens: int | None) -> Json:
    """The usage that every chunk of a stream can have."""
    return counts(prompt_tokens, completion_tokens) | _details(reasoning_tokens)


def _details(reasoning_tokens: int | None) -> Json:
    """None where the worker has no reasoning parser."""
    details: Any = None if reasoning_tokens is None else {"reasoning_tokens": reasoning_tokens}
    return {"completion_tokens_details": details}


def stream_usage(usage: Json, cached: int, created: int, reasoning_tokens: int | None) -> Json:
    """The usage chunk's, from which what is null is left out."""
    usage |= {"prompt_tokens_details": {"cached_tokens": cached, "created_cache_tokens": created}}
    return usage if reasoning_tokens is None else usage | _details(reasoning_tokens)


def body_usage(usage: Json, cached: int, created: int, reasoning_tokens: int | None) -> Json:
    """A whole answer's."""
    prompt = {"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": None}
    return usage | {"prompt_tokens_details": prompt} | _details(reasoning_tokens)
