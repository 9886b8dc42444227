"""The composition root: builds the service, runs it, and ends it well."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import ssl
import time

import uvloop
from aiohttp import web

from gateway.access.access import Access
from gateway.access.keys import KeysError
from gateway.api.body import Bodies
from gateway.api.server import admin_runner, public_runner
from gateway.api.services import Services
from gateway.config import Settings, StartupError
from gateway.fleet.feeds import KvFeeds
from gateway.fleet.fleet import Fleet
from gateway.fleet.snapshots import Snapshots, read_snapshot
from gateway.handoff.base import Handoffs
from gateway.handoff.fabric import Fabric, FabricPool
from gateway.handoff.measured import read_links
from gateway.handoff.nixl_pull import NixlPull
from gateway.handoff.sglang_bootstrap import SglangBootstrap
from gateway.serving.admission import Admission
from gateway.serving.dispatch import Dispatcher
from gateway.serving.flight import Flights
from gateway.serving.prepare import Preparer
from gateway.serving.reaper import Reaper
from gateway.telemetry.logs import configure_logging
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sources import fleet_metrics, router_metrics, serving_metrics, token_metrics
from gateway.tokens.encodings import Encodings
from gateway.tokens.tokenizer import TokenizerError
from parsers.registry import get_format
from router.assumed import AssumedLimits
from router.options import RouterOptions
from router.selector import Router

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 0.5
POLL_SECONDS = 0.05
CUT_OFF_SECONDS = 0.3
"""For the error frames of streams that are cut off to go out."""
GC_THRESHOLDS = (10_000, 20, 50)
"""Requests leave few cycles behind; the default of 700 looks for them every few requests."""


def run(settings: Settings) -> int:
    """`kvgateway serve`: returns the exit code. Raises StartupError."""
    configure_logging(settings.log_level)
    uvloop.run(_serve(settings))
    return 0


def build(settings: Settings) -> Services:
    """Everything but the listeners. Raises StartupError."""
    try:
        encodings = Encodings.load(settings.effective_pools())
    except TokenizerError as error:
        raise StartupError(str(error)) from None
    metrics = Metrics()
    snapshot = read_snapshot(settings.snapshot_file)
    router = Router(
        settings.policy,
        None if snapshot is None else snapshot.seed,
        clock=time.monotonic,
        options=_router_options(settings),
        assumed=AssumedLimits(seconds=settings.assumed_cache_seconds, tokens=settings.assumed_cache_tokens),
    )
    feeds = KvFeeds(router, None if snapshot is None else snapshot.sources)
    snapshots = None
    if settings.snapshot_file is not None:
        snapshots = Snapshots(settings.snapshot_file, settings.snapshot_seconds, router, feeds.positions)
    fabric = _fabric(settings)
    fleet = Fleet(
        settings.effective_workers(),
        router,
        feeds,
        [fabric],
        health_seconds=settings.health_seconds,
        health_timeout_seconds=settings.health_timeout_seconds,
    )
    handoffs = Handoffs({"nixl_pull": NixlPull(settings.kv_lease_seconds), "bootstrap": SglangBootstrap()})
    admission = Admission(settings.queue_limit, settings.queue_seconds)
    reaper = Reaper(settings.kv_lease_seconds)
    dispatcher = Dispatcher(router, fleet, handoffs, metrics, admission, reaper, fabric)
    bodies = Bodies(settings.inflight_body_bytes, settings.max_body_bytes)
    metrics.sources += [
        router_metrics(router),
        fleet_metrics(fleet, feeds),
        fabric.metrics,
        token_metrics(encodings),
        serving_metrics(dispatcher, lambda: bodies.held),
    ]
    return Services(
        settings=settings,
        router=router,
        fleet=fleet,
        fabric=fabric,
        snapshots=snapshots,
        preparer=Preparer(encodings, fleet, settings),
        flights=Flights(dispatcher, settings.continuation_limit),
        metrics=metrics,
        bodies=bodies,
        started=int(time.time()),
        access=_access(settings),
    )


def _access(settings: Settings) -> Access | None:
    """Raises StartupError: the keys cannot be read."""
    if settings.keys_file is None:
        return None
    try:
        return Access(settings.keys_file)
    except KeysError as error:
        raise StartupError(f"keys_file: {error}") from None


def _tls(settings: Settings) -> ssl.SSLContext | None:
    """Raises StartupError: the certificate cannot be used."""
    if settings.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise StartupError(
            f"tls_certificate: {settings.tls_certificate}: {error.strerror or error}"
        ) from None
    return context


def _fabric(settings: Settings) -> Fabric:
    """Raises StartupError: the measured links cannot be read."""
    pools = {
        pool.name: FabricPool(
            shape=get_format(pool.model_format or settings.model_format).kv_shape,
            required_link=pool.required_link,
        )
        for pool in settings.effective_pools()
    }
    return Fabric(pools, read_links(settings.measured_links) if settings.measured_links else {})


def _router_options(settings: Settings) -> RouterOptions:
    return RouterOptions(
        session_mode=settings.session_mode,
        session_seconds=settings.session_seconds,
        busy_queued_tokens=settings.busy_queued_tokens or float("inf"),
        local_prefill_tokens=settings.local_prefill_tokens,
    )


async def _serve(settings: Settings) -> None:
    services = build(settings)
    tls = _tls(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        public = await public_runner(services, shutdown_timeout=SHUTDOWN_SECONDS)
        admin = await admin_runner(services, shutdown_timeout=SHUTDOWN_SECONDS)
        url = await _listen(stack, public, settings.host, settings.port, tls)
        admin_url = await _listen(stack, admin, settings.admin_host, settings.admin_port, tls)
        if services.access is not None:
            watching = asyncio.create_task(services.access.watch(), name="watch keys")
            stack.callback(watching.cancel)
        await services.fleet.start()
        stack.push_async_callback(services.fabric.close)
        stack.push_async_callback(services.fleet.stop)
        # What start-up built lives as long as the process: the collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        logger.info("serving on %s, admin on %s", url, admin_url)
        if services.snapshots is not None:
            saving = asyncio.create_task(services.snapshots.run(), name="snapshots")
            stack.callback(saving.cancel)
        await stop.wait()
        await _drain(services)
        if services.snapshots is not None:
            await services.snapshots.save()


async def _listen(
    stack: contextlib.AsyncExitStack,
    runner: web.AppRunner,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
) -> str:
    """The URL that is listened on. Raises StartupError."""
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host, port, backlog=4096, ssl_context=tls).start()
    except OSError as error:
        raise StartupError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return f"{'http' if tls is None else 'https'}://{host}:{runner.addresses[0][1]}"


async def _drain(services: Services) -> None:
    """Take nothing new, let what runs come to its end, within the limit."""
    services.draining = True
    metrics, limit = services.metrics, services.settings.drain_seconds
    logger.info("draining %d requests for at most %g s", metrics.in_flight, limit)
    deadline = time.monotonic() + limit
    while metrics.in_flight and time.monotonic() < deadline:  # noqa: ASYNC110 - asked once in a lifetime
        await asyncio.sleep(POLL_SECONDS)
    if metrics.in_flight:
        logger.warning("%d requests are cut off after %g s", metrics.in_flight, limit)
        services.flights.dispatcher.cut_off("the gateway shut down")
        await asyncio.sleep(CUT_OFF_SECONDS)
