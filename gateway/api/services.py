"""What the handlers work with."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from gateway.access.access import Access
from gateway.api.body import Bodies
from gateway.config import Settings
from gateway.fleet.fleet import Fleet
from gateway.fleet.snapshots import Snapshots
from gateway.handoff.fabric import Fabric
from gateway.serving.flight import Flights
from gateway.serving.prepare import Preparer
from gateway.telemetry.metrics import Metrics
from router.selector import Router


@dataclass
class Services:
    """Built once by the composition root (`gateway.app`)."""

    settings: Settings
    router: Router
    fleet: Fleet
    fabric: Fabric
    preparer: Preparer
    flights: Flights
    metrics: Metrics
    bodies: Bodies
    started: int
    """Unix time at which the gateway started."""
    access: Access | None = None
    """None: open to all."""
    snapshots: Snapshots | None = None
    """None: not asked for."""
    draining: bool = False


SERVICES = web.AppKey("services", Services)
