"""The worker's HTTP surface on aiohttp."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial

import msgspec
from aiohttp import web

from simulator import errors, replies, requests
from simulator.admin import Admin
from simulator.chat import ChatExchange
from simulator.chat_requests import decode_chat
from simulator.completions import CompletionExchange
from simulator.errors import ApiError
from simulator.exchange import Exchange, Planner
from simulator.generate import GenerateExchange
from simulator.http_metrics import HttpMetrics
from simulator.kv import metrics as kv_metrics
from simulator.metric_page import MetricPage
from simulator.publisher import HIGH_WATER_MARK
from simulator.ranks import Rank, Ranks
from simulator.rendering import Renderer
from simulator.settings import SimulatorSettings
from simulator.tokens import Tokens

MAX_BODY_BYTES = 256 * 1024 * 1024
EVENT_STREAM = "text/event-stream; charset=utf-8"
EMPTY_PATHS = ("/health", "/ping")
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
VERSION = f"{replies.VLLM_VERSION}+sim"
"""vLLM's version with a local label: parses as one, and says that nothing here is a model."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Worker:
    """The handlers and what they share."""

    def __init__(self, settings: SimulatorSettings, tokens: Tokens, ranks: Ranks) -> None:
        self.ranks = ranks
        self._server_load = 0
        self._settings = settings
        self._tokens = tokens
        self._planner = Planner(settings, tokens)
        self._renderer = Renderer(self._planner, tokens, settings.model)
        self._exchanges: dict[str, Exchange] = {}
        self._http_metrics = HttpMetrics()
        self._page = MetricPage([rank.engine for rank in ranks], settings)
        self._page.add(self._http_metrics.collector)
        self._started = int(time.time())

    def app(self) -> web.Application:
        """The application, ready for a runner."""
        admin = Admin(self._settings, self.ranks, self.ranks.faults)
        middlewares = [self._http_metrics.count, _errors, admin.middleware, self._count_load]
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=middlewares)
        admin.add_to(app)
        app.on_response_prepare.append(_common_headers)
        app.cleanup_ctx.extend(rank.connector.lifetime for rank in self.ranks)
        for path in EMPTY_PATHS:
            app.router.add_get(path, _empty)
        app.router.add_get("/version", self._version)
        app.router.add_get("/is_sleeping", _awake)
        app.router.add_get("/load", self._load)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/kv_event_sources", self._kv_event_sources)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/reset_prefix_cache", self._reset)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        for path in ("/inference/v1/abort_requests", "/abort_requests"):
            app.router.add_post(path, self._abort)
        for path, render in (
            ("/tokenize", self._renderer.tokenize),
            ("/detokenize", self._renderer.detokenize),
            ("/v1/chat/completions/render", self._renderer.chat),
            ("/v1/completions/render", self._renderer.completion),
        ):
            app.router.add_post(path, partial(self._render, render))
        return app

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = requests.decode_generate(await self._body(request))
        self._check(body.model)
        rank = self._rank(request)
        header_id = request.headers.get("X-Request-Id")
        with rank.connector.rejecting(body.kv_transfer_params):
            exchange = GenerateExchange(
                body, rank.engine, self._planner, self._tokens, self._settings.model, header_id
            )
        rank.connector.take_legs(exchange, body.kv_transfer_params)
        return await self._answer(request, exchange, stream=bool(body.stream))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = requests.decode_completion(await self._body(request))
        self._check(body.model)
        rank = self._rank(request)
        with rank.connector.rejecting(body.kv_transfer_params):
            exchange = CompletionExchange(
                body,
                rank.engine,
                self._planner,
                self._tokens,
                self._settings.model,
                request.headers.get("X-Request-Id"),
                force_usage=self._settings.force_include_usage,
            )
        rank.connector.take_legs(exchange, body.kv_transfer_params)
        return await self._answer(request, exchange, stream=bool(body.stream))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = decode_chat(await self._body(request))
        self._check(body.model)
        rank = self._rank(request)
        with rank.connector.rejecting(body.kv_transfer_params):
            exchange = ChatExchange(
                body,
                rank.engine,
                self._planner,
                self._tokens,
                self._settings.model,
                request.headers.get("X-Request-Id"),
                force_usage=self._settings.force_include_usage,
            )
        rank.connector.take_legs(exchange, body.kv_transfer_params)
        return await self._answer(request, exchange, stream=bool(body.stream))

    async def _answer(self, request: web.Request, exchange: Exchange, *, stream: bool) -> web.StreamResponse:
        self._exchanges[exchange.request_id] = exchange
        try:
            return await _answer(request, exchange, stream=stream)
        finally:
            self._exchanges.pop(exchange.request_id, None)

    async def _abort(self, request: web.Request) -> web.Response:
        for request_id in requests.decode_abort(await self._body(request)):
            if request_id in self._exchanges:
                self._exchanges[request_id].abort()
        return web.Response()

    async def _render(self, render: Callable[[bytes], bytes], request: web.Request) -> web.Response:
        return _raw_json(render(await self._body(request)), 200)

    async def _body(self, request: web.Request) -> bytes:
        if request.content_type != "application/json":
            raise errors.wrong_content_type()
        return await request.read()

    def _check(self, model: str | None) -> None:
        if model is not None and model != self._settings.model:
            raise errors.unknown_model(model, self._settings.model)

    def _rank(self, request: web.Request) -> Rank:
        return self.ranks.choose(request.headers.get("X-data-parallel-rank"))

    async def _version(self, request: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def _load(self, request: web.Request) -> web.Response:
        return _json({"server_load": self._server_load})

    async def _metrics(self, request: web.Request) -> web.Response:
        engines = [rank.engine for rank in self.ranks]
        page = self._page.render() + kv_metrics.render(engines, self._settings.model).encode()
        return web.Response(body=page, headers={"Content-Type": METRICS_TYPE})

    async def _kv_event_sources(self, request: web.Request) -> web.Response:
        sources = {
            str(number): {
                "endpoint": rank.publisher.endpoint,
                "replay_endpoint": rank.publisher.replay_endpoint,
                "topic": self._settings.kv_topic,
                "buffer_steps": self._settings.kv_buffer_steps,
                "hwm": HIGH_WATER_MARK,
            }
            for number, rank in enumerate(self.ranks)
        }
        return _json(sources)

    async def _models(self, request: web.Request) -> web.Response:
        permission = {
            "id": f"modelperm-{secrets.token_hex(8)}",
            "object": "model_permission",
            "created": self._started,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        card = {
            "id": self._settings.model,
            "object": "model",
            "created": self._started,
            "owned_by": "vllm",
            "root": self._settings.model,
            "parent": None,
            "max_model_len": self._settings.context_length,
            "permission": [permission],
        }
        return _json({"object": "list", "data": [card]})

    async def _reset(self, request: web.Request) -> web.Response:
        preempt = request.query.get("reset_running_requests", "").lower() == "true"
        done = [await rank.engine.reset(preempt=preempt) for rank in self.ranks]
        return _json({"success": all(done)})

    @web.middleware
    async def _count_load(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST":
            return await handler(request)
        self._server_load += 1
        try:
            return await handler(request)
        finally:
            self._server_load -= 1


async def _answer(request: web.Request, exchange: Exchange, *, stream: bool) -> web.StreamResponse:
    if not stream:
        return web.Response(body=await exchange.body(), headers={"Content-Type": "application/json"})
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    response.enable_chunked_encoding()
    async with aclosing(exchange.stream()) as events:
        await response.prepare(request)
        try:
            async for event in events:
                await response.write(event)
        except ApiError as error:
            await response.write(b"data: " + error.body() + b"\n\n" + replies.DONE)
    await response.write_eof()
    return response


async def _awake(request: web.Request) -> web.Response:
    return _json({"is_sleeping": False})


async def _empty(request: web.Request) -> web.Response:
    return web.Response()


async def _common_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"
    if request.path in EMPTY_PATHS:
        response.headers.popall("Content-Type", None)
    response.headers["Vary"] = "Origin"
    response.headers["X-Request-Id"] = request.headers.get("X-Request-Id") or secrets.token_hex(16)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return _raw_json(error.body(), error.status)
    except web.HTTPMethodNotAllowed as error:
        return _json(
            {"detail": "Method Not Allowed"}, 405, {"Allow": ",".join(sorted(error.allowed_methods))}
        )
    except web.HTTPNotFound:
        return _json({"detail": "Not Found"}, 404)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return _raw_json(msgspec.json.encode(value), status, headers)


def _raw_json(body: bytes, status: int, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=body, status=status, headers={"Content-Type": "application/json"} | (headers or {})
    )
