"""What is served, how the gateway is, and what it has counted."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from aiohttp import web

from gateway.api.granted import GRANT
from gateway.api.services import SERVICES, Services
from gateway.serving.errors import model_not_found


def _json(body: Any, status: int = 200) -> web.Response:
    return web.json_response(body, status=status)


async def models(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    return _json({"object": "list", "data": [_model(services, name) for name in _names(request)]})


async def model(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    name = request.match_info["model"]
    if name not in _names(request):
        raise model_not_found(name)
    return _json(_model(services, name))


async def live(request: web.Request) -> web.Response:
    """The process runs; also while it drains."""
    return _json({"status": "live"})


async def ready(request: web.Request) -> web.Response:
    """Some model can be served, and new requests are taken."""
    services = request.app[SERVICES]
    if services.draining:
        return _json({"status": "draining"}, 503)
    served = services.fleet.models()
    return _json({"status": "ready" if served else "no worker", "models": served}, 200 if served else 503)


async def health(request: web.Request) -> web.Response:
    """The gateway is well, with or without workers; 503 once it drains."""
    services = request.app[SERVICES]
    states = {worker.name: worker.state.value for worker in services.fleet.workers.values()}
    status = "draining" if services.draining else "ok"
    return _json({"status": status, "workers": states}, 503 if services.draining else 200)


async def version_info(request: web.Request) -> web.Response:
    return _json({"version": version("kvgateway")})


async def metrics(request: web.Request) -> web.Response:
    body = request.app[SERVICES].metrics.exposition()
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def workers(request: web.Request) -> web.Response:
    """Admin: every configured worker, what probing found, how its KV feeds are, and the pairs."""
    services = request.app[SERVICES]
    described = [services.fleet.describe(name) for name in services.fleet.workers]
    return _json({"workers": described, "pairs": services.fabric.describe()})


def context_length(services: Services, model: str) -> int:
    """Most tokens of a prompt and its answer together."""
    length, limit = services.fleet.context_length(model), services.settings.context_length
    return min(length or limit, limit)


def _names(request: web.Request) -> list[str]:
    """Models that the client may use."""
    names, grant = request.app[SERVICES].fleet.models(), request.get(GRANT)
    return names if grant is None else [name for name in names if grant.may_use(name)]


def _model(services: Services, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": services.started,
        "owned_by": "kvgateway",
        "root": name,
        "parent": None,
        "max_model_len": context_length(services, name),
    }
