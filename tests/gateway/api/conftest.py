"""A gateway in this process, in front of workers scripted byte by byte."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from gateway.api.server import public_runner
from gateway.api.services import Services
from gateway.app import build
from gateway.config import Settings, WorkerSettings
from gateway.fleet.worker import Profile, Worker
from tests.gateway.raw_worker import Answer, RawWorker, running

MODEL = "test/model"


@dataclass
class Gateway:
    """A running gateway and a client."""

    url: str
    services: Services
    session: aiohttp.ClientSession
    workers: Sequence[RawWorker]

    async def post(self, path: str, body: Any = None, **options: Any) -> aiohttp.ClientResponse:
        content = {} if body is None else {"json": body}
        return await self.session.post(self.url + path, **content, **options)

    async def get(self, path: str) -> aiohttp.ClientResponse:
        return await self.session.get(self.url + path)

    async def chat(self, **fields: Any) -> aiohttp.ClientResponse:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.post("/v1/chat/completions", body)

    async def set_endpoint(self, worker: str, endpoint: str) -> None:
        """As if the worker had gone and come back with another API."""
        await self.services.fleet._put_in(
            self.services.fleet.workers[worker],
            Profile(models=(MODEL,), context_length=None, endpoint=endpoint),
        )

    @property
    def reservations(self) -> int:
        return self.services.router.snapshot_stats().open_reservations


@asynccontextmanager
async def gateway(
    *answers: Sequence[Answer],
    endpoint: str = "generate",
    context_length: int | None = None,
    worker_pools: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """A gateway with one ready raw worker for each sequence of answers; nothing is probed."""
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(running(*own)) for own in answers]
        pools = [*worker_pools, *[""] * len(workers)]
        configured = [
            WorkerSettings(url=worker.url, name=f"w{i}", pool=pool)
            for i, (worker, pool) in enumerate(zip(workers, pools, strict=False))
        ]
        services = build(Settings(workers=configured, **{"policy": "round_robin", **settings}))
        profile = Profile(models=(MODEL,), context_length=context_length, endpoint=endpoint)
        for worker in services.fleet.workers.values():
            await _put_in(services, worker, profile)
        runner = await public_runner(services, shutdown_timeout=0.1)
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Gateway(f"http://127.0.0.1:{runner.addresses[0][1]}", services, session, workers)


async def _put_in(services: Services, worker: Worker, profile: Profile) -> None:
    await services.fleet._put_in(worker, profile)
