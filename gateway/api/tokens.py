"""What requests are in tokens: nothing is generated. Shapes are vLLM's, and Anthropic's for its count."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import msgspec
from aiohttp import web

from gateway.api.anthropic.request import read_count
from gateway.api.body import Hold, read_body
from gateway.api.dialects import ANTHROPIC, OPENAI, Dialect
from gateway.api.fields import CHAT_FIELDS, read_fields
from gateway.api.generate import check_target
from gateway.api.granted import check_model
from gateway.api.info import context_length
from gateway.api.relay import relay
from gateway.api.services import SERVICES, Services
from gateway.api.translate import ABSENT, given, missing, read_as
from gateway.engines.constraints import vllm_structured_outputs
from gateway.serving.errors import bad_request
from gateway.serving.request import Fields

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HOLD = web.RequestKey("hold", Hold)


def _holding(handler: Handler) -> Handler:
    """Its body counts among those of all requests under way."""

    @wraps(handler)
    async def handle(request: web.Request) -> web.StreamResponse:
        hold = request[_HOLD] = Hold(request.app[SERVICES].bodies)
        try:
            return await handler(request)
        finally:
            hold.release()

    return handle


class TokenizeBody(msgspec.Struct):
    """Text, or a chat with all its fields."""

    model: str | None = None
    prompt: str | None = None
    messages: msgspec.Raw = ABSENT
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct):
    model: str | None = None
    tokens: list[int] | None = None


@_holding
async def tokenize(request: web.Request) -> web.StreamResponse:
    """POST /tokenize."""
    services, body = request.app[SERVICES], await _read(request)
    asked = read_as(body, TokenizeBody)
    if asked.prompt is None and given(asked.messages) is None:
        raise missing("prompt")
    fields = Fields({}, {}, {})
    if asked.prompt is None:
        fields = read_fields(body, CHAT_FIELDS)
    model = _target(services, request, asked.model, fields, "messages" if asked.prompt is None else None)
    check_model(request, model)
    if services.fleet.only_relays(model):
        return await _relayed(services, request, body, fields)
    if asked.prompt is None:
        reading, prompt = await services.preparer.encode_chat(fields)
    else:
        reading, prompt = await services.preparer.encode_text(fields, asked.prompt)
    ids = prompt.id_list()
    spell = reading.encoding.tokenizer.bytes_of
    strings = [spell(one).decode("utf-8", "replace") for one in ids] if asked.return_token_strs else None
    return _json(
        {
            "count": len(ids),
            "max_model_len": context_length(services, model),
            "tokens": ids,
            "token_strs": strings,
        }
    )


@_holding
async def detokenize(request: web.Request) -> web.StreamResponse:
    """POST /detokenize."""
    services, body = request.app[SERVICES], await _read(request)
    asked = read_as(body, DetokenizeBody)
    if asked.tokens is None:
        raise missing("tokens")
    fields = Fields({}, {}, {})
    model = _target(services, request, asked.model, fields, None)
    check_model(request, model)
    if services.fleet.only_relays(model):
        return await _relayed(services, request, body, fields)
    tokenizer = services.preparer.encoding_of(model).tokenizer
    if asked.tokens and not 0 <= min(asked.tokens) <= max(asked.tokens) < tokenizer.vocabulary.size:
        message = f"`tokens`: a token id is outside 0..{tokenizer.vocabulary.size - 1}."
        raise bad_request(message, "tokens", "invalid_value")
    return _json({"prompt": tokenizer.decode(asked.tokens)})


@_holding
async def count_tokens(request: web.Request) -> web.StreamResponse:
    """POST /v1/messages/count_tokens."""
    services, body = request.app[SERVICES], await _read(request)
    fields = read_count(body, strict=services.settings.strict)
    check_target(services, fields, "messages")
    check_model(request, fields.values["model"])
    check_model(request, fields.values["model"])
    if services.fleet.only_relays(fields.values["model"]):
        return await _relayed(services, request, body, fields, ANTHROPIC)
    reading, _ = await services.preparer.encode_chat(fields)
    return _json({"input_tokens": reading.counted_prompt_tokens})


@_holding
async def render(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions/render: the chat as a worker's generate endpoint would be given it."""
    services, body = request.app[SERVICES], await _read(request)
    fields = read_fields(body, CHAT_FIELDS, strict=services.settings.strict)
    check_target(services, fields, "messages")
    check_model(request, fields.values["model"])
    check_model(request, fields.values["model"])
    if services.fleet.only_relays(fields.values["model"]):
        return await _relayed(services, request, body, fields)
    if fields.refusal is not None:
        raise fields.refusal
    prepared = await services.preparer.chat(fields, secrets.token_hex(12), 0.0)
    job = prepared.job
    sampling: Json = {name: msgspec.Raw(value) for name, value in job.sampling.items()}
    if job.constraint is not None:
        sampling["structured_outputs"] = msgspec.Raw(vllm_structured_outputs(job.constraint))
    if job.logprobs is not None:
        sampling["logprobs"] = job.logprobs
    options = prepared.readings[0].options
    return _json(
        {
            "request_id": f"chatcmpl-{job.request_id}",
            "token_ids": job.prompt.id_list(),
            "features": None,
            "sampling_params": sampling,
            "model": job.model,
            "reasoning_ended": options is not None and not options.thinking,
            "stream": prepared.stream,
            "stream_options": None,
            "cache_salt": job.cache_salt,
            "priority": fields.values.get("priority", 0),
            "kv_transfer_params": None,
        }
    )


async def _read(request: web.Request) -> bytes:
    return await read_body(request, request.app[SERVICES].settings.body_seconds, request[_HOLD])


def _target(
    services: Services, request: web.Request, model: str | None, fields: Fields, required: str | None
) -> str:
    """The model; the only one there is, when none is named."""
    served = services.fleet.models()
    if model is None and len(served) == 1:
        model = served[0]
    if model is not None:
        fields.values["model"] = model
    check_target(services, fields, required or "model")
    check_model(request, fields.values["model"])
    name: str = fields.values["model"]
    return name


async def _relayed(
    services: Services, request: web.Request, body: bytes, fields: Fields, dialect: Dialect = OPENAI
) -> web.StreamResponse:
    fields.values.pop("stream", None)
    return await relay(services, request, request.path, body, fields, secrets.token_hex(12), dialect)


def _json(answer: Json) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
