"""Where a request would go, and why: the router's explanation, for operators. Nothing is sent or counted."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec
from aiohttp import web

from gateway.api.body import read_body
from gateway.api.generate import Surface, check_target
from gateway.api.relay import NO_TOKENS
from gateway.api.services import SERVICES, Services
from gateway.api.surfaces import CHAT, COMPLETIONS
from gateway.serving.places import route_request, with_transfer
from router.explain import Explanation
from router.messages import RouteRequest, Variant

_NOBODY: frozenset[str] = frozenset()


async def explain(request: web.Request) -> web.Response:
    """Admin: POST the body of a chat or of a plain completion."""
    services = request.app[SERVICES]
    body = await read_body(request, services.settings.body_seconds)
    surface = _surface(body)
    fields = surface.read(body, strict=services.settings.strict)
    check_target(services, fields, surface.required)
    request_id = secrets.token_hex(12)
    model = fields.values["model"]
    if services.fleet.only_relays(model):
        route = RouteRequest(request_id=request_id, model=model, token_ids=NO_TOKENS)
    else:
        started = asyncio.get_running_loop().time()
        prepared = await surface.prepare(services.preparer, fields, request_id, started)
        route = with_transfer(route_request(prepared.job, "aggregated", _NOBODY), services.fabric)
    answer = {"model": model, "prompt_tokens": len(route.token_ids), "legs": _legs(services, route)}
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def _surface(body: bytes) -> Surface:
    try:
        names = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return CHAT  # It says what is wrong.
    return COMPLETIONS if "prompt" in names and "messages" not in names else CHAT


def _legs(services: Services, route: RouteRequest) -> dict[str, Any]:
    """One leg, or the decode leg and then the prefill leg in the decode worker's pool."""
    router = services.router
    if not router.prefers_pair(route):
        return {"aggregated": router.explain(route)}
    decode = router.explain(msgspec.structs.replace(route, role="decode"))
    prefill = _in_pool_of(decode, msgspec.structs.replace(route, role="prefill", transfer_seconds={}))
    if decode.chosen is not None:
        unfit, seconds = services.fabric.from_prefill(decode.chosen.worker, len(route.token_ids))
        prefill = msgspec.structs.replace(prefill, exclude=unfit, transfer_seconds=seconds)
    return {"decode": decode, "prefill": router.explain(prefill)}


def _in_pool_of(decode: Explanation, prefill: RouteRequest) -> RouteRequest:
    if decode.chosen is None:
        return prefill
    pool = next(each.pool for each in decode.candidates if each.target == decode.chosen)
    variants = [
        Variant(frozenset({pool}), variant.token_ids, variant.hashes)
        for variant in prefill.variants
        if pool in variant.pools
    ]
    return msgspec.structs.replace(prefill, pools=frozenset({pool}), variants=variants)
