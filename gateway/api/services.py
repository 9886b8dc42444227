"""What the handlers work with."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from gateway.config import Settings
from gateway.fleet.fleet import Fleet
from gateway.serving.dispatch import Dispatcher
from gateway.serving.prepare import Preparer
from gateway.telemetry.metrics import Metrics
from router.selector import Router


@dataclass
class Services:
    """Built once by the composition root (`gateway.app`)."""

    settings: Settings
    router: Router
    fleet: Fleet
    preparer: Preparer
    dispatcher: Dispatcher
    metrics: Metrics
    started: int
    """Unix time at which the gateway started."""
    draining: bool = False


SERVICES = web.AppKey("services", Services)
