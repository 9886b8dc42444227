"""The two listeners' applications: routes, and errors in one shape."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.api import info, route
from gateway.api.errors import body_of, from_engine
from gateway.api.generate import generating
from gateway.api.services import SERVICES, Services
from gateway.api.surfaces import SURFACES
from gateway.engines.base import EngineError
from gateway.serving.errors import RequestError, unavailable
from router.messages import NoWorkerError

logger = logging.getLogger(__name__)

CLIENT_LEFT = 499
"""Counted for a client that went before its answer was complete; nobody reads it."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def public_app(services: Services) -> web.Application:
    """What clients see."""
    app = _app(services)
    for surface in SURFACES:
        app.router.add_post(surface.path, generating(surface))
    app.router.add_get("/v1/models", info.models)
    app.router.add_get("/v1/models/{model:.+}", info.model)
    app.router.add_get("/health", info.health)
    app.router.add_get("/live", info.live)
    app.router.add_get("/ready", info.ready)
    app.router.add_get("/version", info.version_info)
    app.router.add_get("/metrics", info.metrics)
    return app


def admin_app(services: Services) -> web.Application:
    """What operators see."""
    app = _app(services)
    app.router.add_get("/health", info.health)
    app.router.add_get("/metrics", info.metrics)
    app.router.add_get("/workers", info.workers)
    app.router.add_post("/v1/route", route.explain)
    return app


def _app(services: Services) -> web.Application:
    app = web.Application(middlewares=[_answer_errors], client_max_size=services.settings.max_body_bytes)
    app[SERVICES] = services
    return app


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure before the first byte becomes OpenAI's error body; every request is counted."""
    services = request.app[SERVICES]
    services.metrics.in_flight += 1
    status = CLIENT_LEFT
    try:
        response = await handler(request)
        status = response.status
        return response
    except ConnectionResetError:
        return web.Response(status=status)
    except Exception as error:
        failure = _request_error(request, error)
        status = failure.status
        return web.Response(
            body=body_of(failure),
            status=failure.status,
            headers=failure.headers,
            content_type="application/json",
        )
    finally:
        services.metrics.in_flight -= 1
        if status == CLIENT_LEFT:
            services.metrics.client_disconnects += 1
        services.metrics.count_request(_endpoint(request), status)


def _request_error(request: web.Request, error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, NoWorkerError):
        logger.warning("no worker: %s", error)
        return unavailable("No worker can take this request now.", "no_worker")
    if isinstance(error, EngineError):
        return from_engine(error)
    if isinstance(error, web.HTTPException):
        return _http_error(request, error)
    if isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
        return RequestError(400, "The request body cannot be decoded.", code="invalid_body")
    logger.error("request failed", exc_info=error)
    return RequestError(500, "Internal error.", code="internal_error")


def _http_error(request: web.Request, error: web.HTTPException) -> RequestError:
    if error.status == 404:
        return RequestError(
            404, f"There is no {request.method} {request.path[:200]} here.", code="unknown_url"
        )
    if error.status == 405:
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        message = f"{request.method} is not allowed here."
        return RequestError(405, message, code="method_not_allowed", headers=allow)
    if error.status == 413:
        limit = request.app[SERVICES].settings.max_body_bytes
        return RequestError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")
    return RequestError(error.status, error.reason or "The request failed.")


def _endpoint(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
