"""Endpoints around the tokenizer: text to ids and back, and requests to what the engine would be given."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from simulator import errors
from simulator.chat import chat_ids
from simulator.chat_requests import ChatBody, check_chat, decode_chat
from simulator.exchange import Planner, new_id
from simulator.replies import Json, encode
from simulator.requests import CompletionBody, decode, decode_completion, prompts_of
from simulator.tokens import Tokens

DELTA, FINAL_ONLY = 1, 2
"""vLLM's output kinds: of a stream, of a whole answer."""


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /tokenize`: a prompt, or all that a chat has."""

    model: str | None = None
    prompt: str | None = None
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[int] | None = None


class Renderer:
    """The bodies of these endpoints' answers. All raise ApiError for what cannot be answered."""

    def __init__(self, planner: Planner, tokens: Tokens, model: str) -> None:
        self._planner = planner
        self._tokens = tokens
        self._model = model

    def tokenize(self, body: bytes) -> bytes:
        """Ids of a prompt or a chat."""
        asked = decode(body, TokenizeBody)
        self._check(asked.model)
        if asked.prompt is None:
            ids, _ = chat_ids(decode_chat(body), self._planner, self._tokens)
        else:
            ids = self._tokens.encode(asked.prompt)
        names = [self._name(token_id) for token_id in ids] if asked.return_token_strs else None
        return encode(
            {
                "count": len(ids),
                "max_model_len": self._planner.context_length,
                "tokens": ids,
                "token_strs": names,
            }
        )

    def detokenize(self, body: bytes) -> bytes:
        """Text of ids."""
        asked = decode(body, DetokenizeBody)
        self._check(asked.model)
        if asked.tokens is None:
            raise errors.missing("tokens", len(msgspec.json.decode(body)))
        if (outside := self._tokens.first_outside(asked.tokens)) is not None:
            raise errors.outside_vocabulary(outside)
        return encode({"prompt": self._tokens.text(asked.tokens)})

    def chat(self, body: bytes) -> bytes:
        """What a chat would be for `POST /inference/v1/generate`."""
        request = decode_chat(body)
        self._check(request.model)
        check_chat(request, self._planner.context_length)
        ids, encoded = chat_ids(request, self._planner, self._tokens)
        shown: Json = {}
        if self._tokens.marked_up or request.tools:
            shown["skip_special_tokens"] = False
        if self._tokens.marked_up:
            shown["spaces_between_special_tokens"] = False
        rendered = self._rendered("chatcmpl", ids, request, shown)
        if self._tokens.marked_up:
            kwargs = {"chat_template_kwargs": _template_kwargs(request)}
            rendered |= {"reasoning_ended": not encoded.thinking, "reasoning_parser_kwargs": kwargs}
        return encode(rendered)

    def completion(self, body: bytes) -> bytes:
        """The same for each prompt of a completion."""
        request = decode_completion(body)
        self._check(request.model)
        prompts = [self._tokens.encode(one) if isinstance(one, str) else one for one in prompts_of(request)]
        return encode([self._rendered("cmpl", ids, request, {}) for ids in prompts])

    def _rendered(self, prefix: str, ids: list[int], request: ChatBody | CompletionBody, shown: Json) -> Json:
        return {
            "request_id": f"{prefix}-{new_id()}",
            "token_ids": ids,
            "token_offsets": None,
            "features": None,
            "content_parts": None,
            "sampling_params": self._sampling_params(len(ids), request, shown),
            "model": self._model,
            "reasoning_ended": None,
            "reasoning_parser_kwargs": None,
            "return_token_ids": None,
            "output_mode": "tokens",
            "stream": bool(request.stream),
            "stream_options": None,
            "cache_salt": request.cache_salt,
            "priority": 0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
        }

    def _sampling_params(self, prompt_tokens: int, request: ChatBody | CompletionBody, shown: Json) -> Json:
        sampling = request.sampling() if isinstance(request, ChatBody) else request
        room = max(self._planner.context_length - prompt_tokens, 1)
        temperature = 1.0 if sampling.temperature is None else sampling.temperature
        random: Json = {"top_p": 1.0 if request.top_p is None else request.top_p, "min_p": 0.0}
        return {
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "temperature": float(temperature),
            **(random if temperature else {}),
            "stop": sampling.stop_strings,
            "stop_token_ids": sampling.stop_token_ids or [],
            "max_tokens": room if sampling.max_tokens is None else min(sampling.max_tokens, room),
            **shown,
            "output_kind": DELTA if request.stream else FINAL_ONLY,
            "skip_clone": True,
            "bad_words": [],
            "skip_reading_prefix_cache": False,
        }

    def _check(self, model: str | None) -> None:
        if model is not None and model != self._model:
            raise errors.unknown_model(model, self._model)

    def _name(self, token_id: int) -> str:
        """A token as Hugging Face spells it: a printable character for each byte."""
        spelling = self._tokens.bytes_of(token_id)
        if self._tokens.is_control(token_id):
            return spelling.decode()
        return "".join(map(_printable().__getitem__, spelling))


def _template_kwargs(request: ChatBody) -> dict[str, Any]:
    given = request.chat_template_kwargs or {}
    return {"cohere_format": "cmd4", "add_generation_prompt": True, "continue_final_message": False} | given


@cache
def _printable() -> list[str]:
    """For each byte its own character where that can be seen, else one from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(0x100, 0x200))
    return [chr(byte) if byte in seen else chr(next(rest)) for byte in range(256)]
