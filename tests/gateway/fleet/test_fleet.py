"""Workers that come, answer badly, go and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gateway.config import WorkerSettings
from gateway.engines.base import EngineError
from gateway.fleet import fleet as fleet_module
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker, WorkerState
from router.selector import Router


class Feeds:
    """Remembers who is followed."""

    def __init__(self) -> None:
        self.followed: set[str] = set()

    async def start(self, worker: Worker) -> None:
        self.followed.add(worker.name)

    async def stop(self, worker: Worker) -> None:
        self.followed.discard(worker.name)

    def describe(self, name: str) -> list[dict[str, Any]]:
        return []


class Server:
    """A worker that can be started and stopped on one port."""

    def __init__(self) -> None:
        self.health = 200
        self.port = 0
        self.started = 1.0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._refuse)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 100}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f"process_start_time_seconds {self.started}\n")

    async def _refuse(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=400)


class Rig:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.router = Router("round_robin", seed=1)
        self.feeds = Feeds()
        settings = WorkerSettings(url=f"http://127.0.0.1:{server.port}", name="w")
        self.fleet = Fleet([settings], self.router, self.feeds)

    @property
    def worker(self) -> Worker:
        return self.fleet.workers["w"]

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not reached():  # noqa: ASYNC110 - the fleet has no event for it
                await asyncio.sleep(0.01)

    async def until_state(self, state: WorkerState) -> None:
        await self.until(lambda: self.worker.state is state)


@asynccontextmanager
async def rig(*, up: bool = True) -> AsyncIterator[Rig]:
    server = Server()
    await server.start()
    if not up:
        await server.stop()
    running = Rig(server)
    await running.fleet.start()
    try:
        yield running
    finally:
        await running.fleet.stop()
        await server.stop()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(fleet_module, "HEALTH_SECONDS", 0.05)


async def test_a_worker_that_answers_is_used_and_followed() -> None:
    async with rig() as r:
        await r.until_state(WorkerState.READY)
        assert r.fleet.models() == ["m"]
        assert r.fleet.context_length("m") == 100
        assert r.fleet.engine("w") is not None
        assert r.feeds.followed == {"w"}


async def test_a_worker_that_is_not_there_is_waited_for() -> None:
    async with rig(up=False) as r:
        await r.until(lambda: "Connect" in r.worker.reason)
        assert r.fleet.models() == []
        assert not r.fleet.knows("m")
        await r.server.start()
        await r.until_state(WorkerState.READY)


async def test_a_worker_that_goes_is_forgotten_at_once_and_used_again_when_it_is_back() -> None:
    async with rig() as r:
        await r.until_state(WorkerState.READY)
        await r.server.stop()
        await r.until_state(WorkerState.DOWN)
        assert r.router.snapshot_stats().targets == []
        assert r.feeds.followed == set()
        assert r.fleet.engine("w") is None
        assert r.fleet.models() == []
        assert r.fleet.knows("m")
        await r.server.start()
        await r.until_state(WorkerState.READY)
        assert r.feeds.followed == {"w"}


async def test_a_worker_that_says_it_is_unwell_is_taken_out_after_some_answers() -> None:
    async with rig() as r:
        await r.until_state(WorkerState.READY)
        r.server.health = 503
        await r.until_state(WorkerState.DOWN)
        assert "503" in r.worker.reason
        await asyncio.sleep(0.3)
        assert r.worker.state is WorkerState.DOWN
        r.server.health = 200
        await r.until_state(WorkerState.READY)


async def test_a_failed_request_makes_the_fleet_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "HEALTH_SECONDS", 60)
    async with rig() as r:
        await r.until_state(WorkerState.READY)
        await r.server.stop()
        r.fleet.report_failure("w", EngineError("lost", retryable=True))
        await r.until_state(WorkerState.DOWN)


async def test_a_worker_that_is_well_survives_a_failed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "HEALTH_SECONDS", 60)
    async with rig() as r:
        await r.until_state(WorkerState.READY)
        r.fleet.report_failure("w", EngineError("lost", retryable=True))
        await r.until(lambda: not r.fleet._wake["w"].is_set())
        await asyncio.sleep(0.1)
        assert r.worker.state is WorkerState.READY


async def test_a_description_tells_what_a_person_asks_for() -> None:
    async with rig() as r:
        await r.until_state(WorkerState.READY)
        described = r.fleet.describe("w")
        assert (described["state"], described["profile"]["endpoint"]) == ("ready", "completions")


async def test_a_worker_that_was_started_anew_is_a_new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "LIFE_SECONDS", 0.05)
    async with rig() as r:
        await r.until_state(WorkerState.READY)
        engine = r.fleet.engine("w")
        await asyncio.sleep(0.3)
        assert r.fleet.engine("w") is engine
        r.server.started += 1
        await r.until(lambda: r.fleet.engine("w") not in (engine, None))
        assert r.worker.profile is not None
        assert r.worker.profile.life == str(r.server.started)


async def test_an_answer_of_another_start_is_noticed_before_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "HEALTH_SECONDS", 60)
    async with rig() as r:
        await r.until_state(WorkerState.READY)
        engine = r.fleet.engine("w")
        assert engine is not None
        engine.identified("first", "h:1")
        engine.identified("first", "h:2")
        await asyncio.sleep(0.1)
        assert r.fleet.engine("w") is engine
        engine.identified("second", "h:1")
        await r.until(lambda: r.fleet.engine("w") not in (engine, None))
