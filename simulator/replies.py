"""Response bodies and stream chunks, field for field in vLLM 0.32.0's order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from simulator.generation import Generation, Step
from simulator.tokens import HALF, TextStream, Tokens

DONE = b"data: [DONE]\n\n"
VLLM_VERSION = "0.32.0"
LOGPROB = -0.125
"""Made up: nothing is sampled here."""

Json = dict[str, Any]


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of one request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0

    def counts(self) -> Json:
        """What every usage has."""
        return counts(self.prompt_tokens, self.completion_tokens)

    def of_stream(self) -> Json:
        """The usage chunk's."""
        return self.counts() | {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}

    def of_body(self) -> Json:
        """A whole response's."""
        details = {
            "cached_tokens": self.cached_tokens,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        }
        return self.counts() | {"prompt_tokens_details": details, "completion_tokens_details": None}


def counts(prompt_tokens: int, completion_tokens: int) -> Json:
    """The three numbers of every usage."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def step_counts(step: Step) -> Json:
    """The same for one choice up to a step."""
    return counts(len(step.generation.token_ids), step.start + len(step.ids))


class ChoiceText:
    """One choice's text and log-probabilities, step by step."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        skip_special: bool,
        logprobs: int | None,
        ids_as_tokens: bool,
        stop: Sequence[str] = (),
    ) -> None:
        self._tokens = tokens
        self.stream = TextStream(tokens, skip_special=skip_special, stop=stop)
        self._count = logprobs
        self._ids_as_tokens = ids_as_tokens
        self._offset = 0

    def push(self, step: Step) -> str:
        """Text that became complete with this step."""
        return self.stream.steps(step.ids, last=step.last)

    def token_logprobs(self, ids: Sequence[int]) -> Json | None:
        """In generate's shape: ids."""
        if self._count is None:
            return None
        content = []
        for token_id in ids:
            top = [
                {"token_id": other, "logprob": value, "rank": rank}
                for rank, (other, value) in enumerate(self._top(token_id), 1)
            ]
            content.append({"token_id": token_id, "logprob": LOGPROB, "rank": 1, "top_logprobs": top})
        return {"content": content}

    def text_logprobs(self, ids: Sequence[int]) -> Json | None:
        """In the completions shape: parallel lists, offsets in characters."""
        if self._count is None:
            return None
        names = [self._name(token_id) for token_id in ids]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        return {
            "text_offset": offsets,
            "token_logprobs": [LOGPROB] * len(names),
            "tokens": names,
            "top_logprobs": [{self._name(other): value for other, value in self._top(one)} for one in ids],
        }

    def chat_logprobs(self, ids: Sequence[int]) -> Json | None:
        """In the chat shape: an entry a token, its bytes in it."""
        if self._count is None:
            return None
        content = []
        for token_id in ids:
            top = [self._entry(other, value) for other, value in self._top(token_id)[: self._count]]
            content.append(self._entry(token_id, LOGPROB) | {"top_logprobs": top})
        return {"content": content}

    def _entry(self, token_id: int, value: float) -> Json:
        name = self._name(token_id)
        return {"token": name, "logprob": value, "bytes": list(name.encode())}

    def _top(self, token_id: int) -> list[tuple[int, float]]:
        others = ((token_id + step) % self._tokens.size for step in range(1, self._count or 0))
        return [(token_id, LOGPROB), *((other, LOGPROB * (2 + rank)) for rank, other in enumerate(others))]

    def _name(self, token_id: int) -> str:
        if self._ids_as_tokens:
            return f"token_id:{token_id}"
        name = self._tokens.bytes_of(token_id).decode("utf-8", "replace")
        return "" if name.endswith(HALF) else name


def encode(value: Any) -> bytes:
    """Compact JSON."""
    return msgspec.json.encode(value)


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def fingerprint(model: str) -> str:
    """vLLM's version and eight hex digits that stand for the configuration."""
    return f"vllm-{VLLM_VERSION}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def generate_choice(step: Step, text: str | None, logprobs: Json | None) -> Json:
    """A choice of a generate chunk, or of a body when the step is a whole output."""
    plan = step.generation.plan
    versions = [{"version": "default", "start": 0, "end": len(plan.ids)}] if step.last else None
    choice: Json = {
        "index": step.generation.index,
        "finish_reason": plan.finish_reason if step.last else None,
        "stop_reason": plan.stop_reason if step.last else None,
        "token_ids": step.ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": versions,
    }
    if text is not None:
        choice["text"] = text
    return choice | {"logprobs": logprobs}


def generate_chunk(
    request_id: str,
    mode: str,
    choices: list[Json],
    usage: Json | None,
    prompt_ids: Sequence[int] | None = None,
) -> bytes:
    """One event of a generate stream; the prompt's ids go with the first one when asked for."""
    head: Json = {"request_id": request_id, "usage": usage}
    if prompt_ids is not None:
        head["prompt_token_ids"] = prompt_ids
    return sse(head | {"output_mode": mode, "choices": choices})


def generate_body(
    request_id: str,
    model: str,
    created: int,
    mode: str,
    usage: Usage,
    choices: list[Json],
    prompt_ids: Sequence[int] | None,
    kv_transfer_params: Json | None = None,
) -> bytes:
    """A whole generate response."""
    return encode(
        {
            "request_id": request_id,
            "model": model,
            "created": created,
            "usage": usage.of_body(),
            "prompt_logprobs": None,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": prompt_ids,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": kv_transfer_params,
            "ec_transfer_params": None,
            "output_mode": mode,
            "choices": choices,
        }
    )


def completion_chunk_choice(
    step: Step, text: str, logprobs: Json | None, ids: Sequence[int] | None, prompt_ids: Sequence[int] | None
) -> Json:
    """A choice of a completions chunk."""
    plan = step.generation.plan
    return {
        "index": step.generation.index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": plan.finish_reason if step.last else None,
        "stop_reason": plan.stop_reason if step.last else None,
        "prompt_token_ids": prompt_ids,
        "token_ids": ids,
    }


def completion_choice(
    generation: Generation,
    text: str,
    logprobs: Json | None,
    ids: Sequence[int] | None,
    prompt_ids: Sequence[int] | None,
) -> Json:
    """A choice of a whole completions response."""
    return {
        "index": generation.index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": generation.plan.finish_reason,
        "stop_reason": generation.plan.stop_reason,
        "token_ids": ids,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt_ids,
        "routed_experts": None,
    }


def completion_head(completion_id: str, created: int, model: str, choices: list[Json]) -> Json:
    """What a completions chunk and body begin with."""
    return {
        "id": completion_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
    }


def completion_body(head: Json, model: str, usage: Usage, kv_transfer_params: Json | None = None) -> bytes:
    """A whole completions response."""
    rest = {
        "service_tier": None,
        "system_fingerprint": fingerprint(model),
        "usage": usage.of_body(),
        "kv_transfer_params": kv_transfer_params,
        "ec_transfer_params": None,
        "metrics": None,
    }
    return encode(head | rest)
