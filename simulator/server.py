"""The worker's HTTP surface on aiohttp."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from aiohttp import web

from simulator import errors, requests
from simulator.admin import Admin
from simulator.answering import json_answer, raw_json, send
from simulator.chat import ChatExchange
from simulator.chat_requests import ChatBody, decode_chat
from simulator.completions import CompletionExchange
from simulator.engine import Engine
from simulator.errors import ApiError
from simulator.exchange import Exchange, Planner, Service
from simulator.generate import GenerateExchange
from simulator.http_metrics import HttpMetrics
from simulator.information import EMPTY_PATHS, Information
from simulator.ranks import Ranks
from simulator.rendering import Renderer
from simulator.settings import SimulatorSettings
from simulator.tokens import Tokens

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 * 1024 * 1024
RANK_HEADER, REQUEST_ID_HEADER = "X-data-parallel-rank", "X-Request-Id"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body", bound=requests.GenerateBody | requests.CompletionBody | ChatBody)


class Worker:
    """The handlers and what they share."""

    def __init__(self, settings: SimulatorSettings, tokens: Tokens, ranks: Ranks) -> None:
        self.ranks = ranks
        planner = Planner(settings, tokens)
        self._settings = settings
        self._service = Service(planner, tokens, settings.model, settings.force_include_usage)
        self._renderer = Renderer(planner, tokens, settings.model)
        self._exchanges: dict[str, Exchange] = {}
        self._http_metrics = HttpMetrics()
        self._load = 0
        self._information = Information(settings, ranks, self._http_metrics, lambda: self._load)

    def app(self) -> web.Application:
        """The application, ready for a runner."""
        admin = Admin(self._settings, self.ranks, self.ranks.faults)
        middlewares = [self._http_metrics.count, _errors, admin.middleware, self._count_load]
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=middlewares)
        app.on_response_prepare.append(_common_headers)
        app.cleanup_ctx.extend(rank.connector.lifetime for rank in self.ranks)
        admin.add_to(app)
        self._information.add_to(app)
        app.router.add_post("/reset_prefix_cache", self._reset)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/tokenize", partial(self._render, self._renderer.tokenize))
        app.router.add_post("/detokenize", partial(self._render, self._renderer.detokenize))
        self._add_scale_out(app)
        return app

    def _add_scale_out(self, app: web.Application) -> None:
        """Endpoints that vLLM has only with --enable-scale-out."""
        handlers: dict[str, Handler] = {
            "/inference/v1/generate": self._generate,
            "/inference/v1/abort_requests": self._abort,
            "/abort_requests": self._abort,
            "/v1/chat/completions/render": partial(self._render, self._renderer.chat),
            "/v1/completions/render": partial(self._render, self._renderer.completion),
        }
        for path, handler in handlers.items():
            app.router.add_post(path, _disabled if self._settings.disable_scale_out else handler)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        return await self._run(request, requests.decode_generate, GenerateExchange)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._run(request, requests.decode_completion, CompletionExchange)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._run(request, decode_chat, ChatExchange)

    async def _run(
        self,
        request: web.Request,
        decode: Callable[[bytes], Body],
        make: Callable[[Body, Engine, Service, str | None], Exchange],
    ) -> web.StreamResponse:
        body = decode(await _json_body(request))
        if body.model is not None and body.model != self._settings.model:
            raise errors.unknown_model(body.model, self._settings.model)
        rank = self.ranks.choose(request.headers.get(RANK_HEADER))
        with rank.connector.rejecting(body.kv_transfer_params):
            exchange = make(body, rank.engine, self._service, request.headers.get(REQUEST_ID_HEADER))
        rank.connector.take_legs(exchange, body.kv_transfer_params)
        self._exchanges[exchange.request_id] = exchange
        try:
            return await send(request, exchange, stream=bool(body.stream))
        finally:
            self._exchanges.pop(exchange.request_id, None)

    async def _abort(self, request: web.Request) -> web.Response:
        for request_id in requests.decode_abort(await _json_body(request)):
            if request_id in self._exchanges:
                self._exchanges[request_id].abort()
        return web.Response()

    async def _render(self, render: Callable[[bytes], bytes], request: web.Request) -> web.Response:
        return raw_json(render(await _json_body(request)))

    async def _reset(self, request: web.Request) -> web.Response:
        preempt = request.query.get("reset_running_requests", "").lower() == "true"
        done = [await rank.engine.reset(preempt=preempt) for rank in self.ranks]
        return json_answer({"success": all(done)})

    @web.middleware
    async def _count_load(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST":
            return await handler(request)
        self._load += 1
        try:
            return await handler(request)
        finally:
            self._load -= 1


async def _json_body(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        raise errors.wrong_content_type()
    return await request.read()


async def _disabled(request: web.Request) -> web.StreamResponse:
    raise errors.scale_out_disabled()


async def _common_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"
    if request.path in EMPTY_PATHS:
        response.headers.popall("Content-Type", None)
    response.headers["Vary"] = "Origin"
    response.headers[REQUEST_ID_HEADER] = request.headers.get(REQUEST_ID_HEADER) or secrets.token_hex(16)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return raw_json(error.body(), error.status)
    except web.HTTPMethodNotAllowed as error:
        allowed = {"Allow": ",".join(sorted(error.allowed_methods))}
        return json_answer({"detail": "Method Not Allowed"}, 405, allowed)
    except web.HTTPNotFound:
        return json_answer({"detail": "Not Found"}, 404)
    except web.HTTPException:
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        failure = errors.internal()
        return raw_json(failure.body(), failure.status)
