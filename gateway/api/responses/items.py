"""Items of a response's output, and the response around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.head import Head
from gateway.api.usage import Usage
from parsers.base import Finish

Json = dict[str, Any]
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Item(msgspec.Struct, kw_only=True):
    """One item as it grows."""

    id: str
    kind: str
    """reasoning, message or function_call."""
    call_id: str = ""
    name: str = ""
    pieces: list[str] = []
    logprobs: list[Json] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self) -> Json:
        """Its content part."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def shown(self, status: str) -> Json:
        done = status != "in_progress"
        if self.kind == "function_call":
            arguments = self.text if done else ""
            call = {"call_id": self.call_id, "name": self.name, "arguments": arguments}
            return {"id": self.id, "type": self.kind, "status": status, **call}
        content = [self.part()] if done else []
        if self.kind == "reasoning":
            return {"id": self.id, "type": self.kind, "summary": [], "content": content, "status": status}
        return {"id": self.id, "type": self.kind, "status": status, "role": "assistant", "content": content}


def shown_items(items: Sequence[Item], status: str) -> list[Json]:
    """All of an output; `status` is that of the last one."""
    return [item.shown("completed") for item in items[:-1]] + [item.shown(status) for item in items[-1:]]


def status_of(end: Finish) -> str:
    return "incomplete" if end.reason in _INCOMPLETE else "completed"


def response(
    head: Head,
    status: str,
    output: list[Json],
    usage: Usage | None = None,
    end: Finish | None = None,
    **rest: Any,
) -> Json:
    """The response object."""
    reason = _INCOMPLETE.get(end.reason) if end is not None else None
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None if reason is None else {"reason": reason},
        "model": head.model,
        "output": output,
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        **head.values["asked"],
        "usage": None if usage is None else _usage(usage),
        **rest,
    }


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
