"""The service as a process: starting, draining, ending."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from tests.gateway.raw_worker import event, tokens

MODEL = "test/model"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}


class Process:
    """A gateway in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, admin_url: str) -> None:
        self.process = process
        self.url = url
        self.admin_url = admin_url

    async def ended(self, seconds: float = 20) -> int:
        return await asyncio.wait_for(self.process.wait(), seconds)


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "gateway.cli", "serve", "--port", "0", "--admin-port", "0", *flags]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        urls: list[str] = []
        while not urls:
            line = await asyncio.wait_for(process.stderr.readline(), 20)
            assert line, "the gateway ended"
            urls = re.findall(rb"serving on (\S+), admin on (\S+)", line) and [
                part.decode() for part in re.findall(rb"http://[0-9.:]+", line)
            ]
        drain = asyncio.create_task(process.stderr.read())
        yield Process(process, *urls)
        drain.cancel()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class PacedWorker:
    """A worker with vLLM's probed endpoints, whose stream goes on when `more` is set."""

    def __init__(self) -> None:
        self.more = asyncio.Event()
        self.url = ""

    async def generate(self, request: web.Request) -> web.StreamResponse:
        if not (await request.json()):
            return web.json_response({"error": {"message": "token_ids missing"}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event(tokens(5)))
        await self.more.wait()
        await response.write(event(tokens(6, finish="stop")) + event(b"[DONE]"))
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL, "max_model_len": 4096}]})


@asynccontextmanager
async def paced_worker() -> AsyncIterator[PacedWorker]:
    worker = PacedWorker()
    app = web.Application()
    app.router.add_get("/v1/models", worker.models)
    app.router.add_post("/inference/v1/generate", worker.generate)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    worker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield worker
    finally:
        await runner.cleanup()


async def until_ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(20):
        while (await session.get(f"{url}/ready")).status != 200:  # noqa: ASYNC110 - it is the service's own way
            await asyncio.sleep(0.05)


async def test_it_starts_and_is_live_without_a_worker_and_ends_at_once() -> None:
    async with serving() as gateway, aiohttp.ClientSession() as session:
        statuses = [(await session.get(gateway.url + path)).status for path in ("/live", "/health", "/ready")]
        assert statuses == [200, 200, 503]
        assert (await (await session.get(gateway.admin_url + "/workers")).json()) == {
            "workers": [],
            "pairs": [],
        }
        gateway.process.send_signal(signal.SIGTERM)
        assert await gateway.ended() == 0


async def test_sigterm_lets_a_stream_finish_and_takes_nothing_new() -> None:
    async with (
        paced_worker() as worker,
        serving("--worker", worker.url) as gateway,
        aiohttp.ClientSession() as session,
    ):
        await until_ready(session, gateway.url)
        stream = await session.post(gateway.url + "/v1/chat/completions", json=CHAT)
        await stream.content.readany()
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            while (await session.get(gateway.url + "/ready")).status == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        refused = await session.post(gateway.url + "/v1/chat/completions", json=CHAT)
        assert (refused.status, (await session.get(gateway.url + "/live")).status) == (503, 200)
        worker.more.set()
        rest = (await stream.read()).decode()
        assert json.loads(rest.split("\n\n")[-3].removeprefix("data: "))["choices"][0]["finish_reason"]
        assert rest.endswith("data: [DONE]\n\n")
        assert await gateway.ended() == 0


async def test_a_stream_that_outlasts_the_drain_limit_is_cut_off() -> None:
    async with (
        paced_worker() as worker,
        serving("--worker", worker.url, "--drain-seconds", "0.3") as gateway,
        aiohttp.ClientSession() as session,
    ):
        await until_ready(session, gateway.url)
        stream = await session.post(gateway.url + "/v1/chat/completions", json=CHAT)
        await stream.content.readany()
        gateway.process.send_signal(signal.SIGTERM)
        rest = (await stream.read()).decode().split("\n\n")
        assert json.loads(rest[-3].removeprefix("data: "))["error"]["type"] == "server_error"
        assert rest[-2] == "data: [DONE]"
        assert await gateway.ended() == 0
        worker.more.set()
