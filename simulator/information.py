"""Endpoints that only tell: health, version, load, models, KV event sources, metrics."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from aiohttp import web

from simulator import replies
from simulator.answering import json_answer
from simulator.http_metrics import HttpMetrics
from simulator.kv import metrics as kv_metrics
from simulator.metric_page import MetricPage
from simulator.publisher import HIGH_WATER_MARK
from simulator.ranks import Ranks
from simulator.settings import SimulatorSettings

EMPTY_PATHS = ("/health", "/ping")
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
VERSION = f"{replies.VLLM_VERSION}+sim"
"""vLLM's version with a local label: parses as one, and says that nothing here is a model."""


class Information:
    """The handlers."""

    def __init__(
        self, settings: SimulatorSettings, ranks: Ranks, http_metrics: HttpMetrics, load: Callable[[], int]
    ) -> None:
        """`load` counts the requests that the server is at."""
        self._settings = settings
        self._ranks = ranks
        self._load = load
        self._started = int(time.time())
        self._engines = [rank.engine for rank in ranks]
        self._page = MetricPage(self._engines, settings)
        self._page.add(http_metrics.collector)

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        for path in EMPTY_PATHS:
            app.router.add_get(path, _empty)
        app.router.add_get("/version", _version)
        app.router.add_get("/is_sleeping", _awake)
        app.router.add_get("/load", self._server_load)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/kv_event_sources", self._kv_event_sources)
        app.router.add_get("/v1/models", self._models)

    async def _server_load(self, request: web.Request) -> web.Response:
        return json_answer({"server_load": self._load()})

    async def _metrics(self, request: web.Request) -> web.Response:
        transfers = kv_metrics.render(self._engines, self._settings.model).encode()
        return web.Response(body=self._page.render() + transfers, headers={"Content-Type": METRICS_TYPE})

    async def _kv_event_sources(self, request: web.Request) -> web.Response:
        sources = {
            str(number): {
                "endpoint": rank.publisher.endpoint,
                "replay_endpoint": rank.publisher.replay_endpoint,
                "topic": self._settings.kv_topic,
                "buffer_steps": self._settings.kv_buffer_steps,
                "hwm": HIGH_WATER_MARK,
            }
            for number, rank in enumerate(self._ranks)
        }
        return json_answer(sources)

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
        return json_answer({"object": "list", "data": [card]})


async def _version(request: web.Request) -> web.Response:
    return json_answer({"version": VERSION})


async def _awake(request: web.Request) -> web.Response:
    return json_answer({"is_sleeping": False})


async def _empty(request: web.Request) -> web.Response:
    return web.Response()
