"""The two listeners' applications: routes, and errors in one shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.access.access import Grant
from gateway.api import info, openapi, route, tokens
from gateway.api.connection import Runner
from gateway.api.dialects import failure
from gateway.api.errors import as_request_error
from gateway.api.generate import generating
from gateway.api.granted import GRANT
from gateway.api.request_id import HEADER, answered_id
from gateway.api.services import SERVICES, Services
from gateway.api.surfaces import SURFACES
from gateway.serving.errors import RequestError

CLIENT_LEFT = 499
"""Counted for a client that went before its answer was complete; nobody reads it."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Admit = Callable[[web.Request], Grant | None]
"""What the request's key grants, None when it needs none. Raises RequestError."""
AnyHandler = Callable[..., Awaitable[web.StreamResponse]]


async def public_runner(services: Services, **options: Any) -> web.AppRunner:
    """What clients see, ready to listen; `options` are aiohttp's own."""
    runner = Runner(_public_app(services), **_options(services), handler_cancellation=True, **options)
    await runner.setup()
    assert runner.server is not None
    runner.server.request_handler = _shortcut(services, runner.server.request_handler)
    return runner


async def admin_runner(services: Services, **options: Any) -> web.AppRunner:
    """What operators see, ready to listen."""
    runner = Runner(_admin_app(services), **_options(services), **options)
    await runner.setup()
    return runner


def _options(services: Services) -> dict[str, Any]:
    return {
        "on_malformed": lambda status: services.metrics.count_request("malformed", status),
        "keepalive_timeout": services.settings.idle_seconds,
    }


def _shortcut(services: Services, routed: AnyHandler) -> AnyHandler:
    """The generating endpoints without aiohttp's routing, which costs more than all checks of a request.

    Anything out of the ordinary, a query or an `Expect`, goes the usual way, `routed`.
    """
    admit = _client_door(services)
    direct = {surface.path: generating(surface, services) for surface in SURFACES}

    async def handle(request: web.Request) -> web.StreamResponse:
        path = request.raw_path
        handler = direct.get(path)
        if handler is None or request.method != hdrs.METH_POST or hdrs.EXPECT in request.headers:
            return await routed(request)
        return await _answer(services, admit, path, request, handler)

    return handle


def _public_app(services: Services) -> web.Application:
    app = _app(services, _client_door(services))
    for surface in SURFACES:
        app.router.add_post(surface.path, generating(surface, services))
    app.router.add_post("/v1/messages/count_tokens", tokens.count_tokens)
    app.router.add_post("/v1/chat/completions/render", tokens.render)
    app.router.add_post("/tokenize", tokens.tokenize)
    app.router.add_post("/detokenize", tokens.detokenize)
    app.router.add_get("/v1/models", info.models)
    app.router.add_get("/v1/models/{model:.+}", info.model)
    app.router.add_get("/health", info.health)
    app.router.add_get("/live", info.live)
    app.router.add_get("/ready", info.ready)
    app.router.add_get("/version", info.version_info)
    app.router.add_get("/metrics", info.metrics)
    app.router.add_get("/openapi.json", openapi.openapi)
    app.router.add_get("/docs", openapi.docs)
    return app


def _admin_app(services: Services) -> web.Application:
    app = _app(services, _admin_door(services))
    app.router.add_get("/health", info.health)
    app.router.add_get("/metrics", info.metrics)
    app.router.add_get("/workers", info.workers)
    app.router.add_post("/v1/route", route.explain)
    return app


def _app(services: Services, admit: Admit | None) -> web.Application:
    limit = services.settings.max_body_bytes
    app = web.Application(middlewares=[_answering(services, admit)], client_max_size=limit)
    app[SERVICES] = services
    return app


def _answering(services: Services, admit: Admit | None) -> Any:
    """The middleware: every failure before the first byte becomes an error body, every request is counted."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await _answer(services, admit, _endpoint(request), request, handler)

    return answer


def _client_door(services: Services) -> Admit | None:
    access = services.access
    if access is None:
        return None
    return lambda request: access.enter(request.path, request.method, request.headers)


def _admin_door(services: Services) -> Admit | None:
    access = services.access
    if access is None:
        return None

    def admit(request: web.Request) -> None:
        access.check_admin(request.path, request.headers)

    return admit


async def _answer(
    services: Services, admit: Admit | None, endpoint: str, request: web.Request, handler: Handler
) -> web.StreamResponse:
    services.metrics.in_flight += 1
    status = CLIENT_LEFT
    grant = None
    try:
        if admit is not None and (grant := admit(request)) is not None:
            request[GRANT] = grant
        response = await handler(request)
        status = response.status
        if not response.prepared and HEADER not in response.headers:
            response.headers[HEADER] = answered_id(request)
        return response
    except ConnectionResetError:
        return web.Response(status=status)
    except Exception as error:
        told = _request_error(services, request, error)
        status = told.status
        return failure(told, request.path, answered_id(request))
    finally:
        if grant is not None:
            grant.leave()
        services.metrics.in_flight -= 1
        if status == CLIENT_LEFT:
            services.metrics.client_disconnects += 1
        services.metrics.count_request(endpoint, status)


def _request_error(services: Services, request: web.Request, error: Exception) -> RequestError:
    if isinstance(error, web.HTTPException):
        return _http_error(services, request, error)
    if isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
        return RequestError(400, "The request body cannot be decoded.", code="invalid_body")
    return as_request_error(error)


def _http_error(services: Services, request: web.Request, error: web.HTTPException) -> RequestError:
    if error.status == 404:
        return RequestError(
            404, f"There is no {request.method} {request.path[:200]} here.", code="unknown_url"
        )
    if error.status == 405:
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        message = f"{request.method} is not allowed here."
        return RequestError(405, message, code="method_not_allowed", headers=allow)
    if error.status == 413:
        limit = services.settings.max_body_bytes
        return RequestError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")
    return RequestError(error.status, error.reason or "The request failed.")


def _endpoint(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
