"""Fetching from a server on loopback, which only these tests allow, and not fetching from anywhere inside."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gateway.media.addresses import is_public
from gateway.media.fetch import Fetcher, FetchError

LOOPBACK = ipaddress.ip_address("127.0.0.1")


@asynccontextmanager
async def server(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def fetcher(seconds: float = 5.0) -> Fetcher:
    return Fetcher(seconds, lambda address: address == LOOPBACK)


async def refusal(url: str, made: Fetcher | None = None, max_bytes: int = 1000) -> str:
    with pytest.raises(FetchError) as refused:
        await (made or fetcher()).get(url, max_bytes)
    assert "127.0.0.1" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.5.5",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a9fe:a9fe",
    ],
)
def test_inner_addresses_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/",
        "http://[::1]:1/",
        "http://localhost:1/",
        "http://2130706433:1/",
        "http://0x7f000001:1/",
        "http://127.1:1/",
        "http://[::ffff:127.0.0.1]:1/",
        "http://169.254.169.254/latest/meta-data/",
    ],
)
async def test_however_it_is_spelled_loopback_is_not_fetched_from(url: str) -> None:
    asked: list[str] = []

    async def remember(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=b"secret")

    async with server(remember) as there:
        await refusal(url.replace(":1/", ":" + there.rpartition(":")[2] + "/"), Fetcher(5.0))
    assert not asked


async def test_a_body_is_fetched_through_names_and_redirects() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/old":
            raise web.HTTPFound("/new")
        assert "Cookie" not in request.headers
        return web.Response(body=b"image")

    async with server(answer) as there:
        assert await fetcher().get(f"http://{there}/old", 5) == b"image"


@pytest.mark.parametrize(
    "target", ["http://10.0.0.1/", "http://[::1]/", "file:///etc/passwd", "ftp://x/", "//::bad"]
)
async def test_a_redirect_is_checked_like_the_first_url(target: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": target})

    async with server(answer) as there:
        await refusal(f"http://{there}/")


async def test_redirects_in_a_circle_end() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/"})

    async with server(answer) as there:
        assert "redirected too often" in await refusal(f"http://{there}/")


@pytest.mark.parametrize("told", [True, False])
async def test_what_is_too_large_is_not_read_to_its_end(told: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100000"} if told else {})
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * 1000)
        return response

    async with server(answer) as there:
        assert "larger than 1000 bytes" in await refusal(f"http://{there}/")


async def test_a_server_that_does_not_answer_is_left() -> None:
    async def never(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with server(never) as there:
        assert "did not come within" in await refusal(f"http://{there}/", fetcher(0.1))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "file:///etc/passwd",
        "http://",
        "http://u:p@127.0.0.1/",
        "gopher://x",
        "http://[::1",
        "x",
    ],
)
async def test_urls_of_other_kinds_are_refused(url: str) -> None:
    await refusal(url)


@pytest.mark.parametrize("status", [204, 403, 404, 500])
async def test_an_answer_that_is_no_200_is_refused(status: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status)

    async with server(answer) as there:
        assert str(status) in await refusal(f"http://{there}/")


async def test_a_name_with_one_inner_address_among_others_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([["8.8.8.8", "127.0.0.1"]])

    async def resolve(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(2, 1, 6, "", (address, 80)) for address in next(answers)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    await refusal("http://mixed.example/", Fetcher(5.0))


async def test_a_name_is_resolved_once_and_the_connection_goes_where_it_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that points elsewhere when it is asked again gains nothing."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=request.headers["Host"].encode())

    async with server(answer) as there:
        port = int(there.rpartition(":")[2])
        answers = iter(["127.0.0.1"])

        async def resolve(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
            return [(2, 1, 6, "", (next(answers), port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
        assert (
            await fetcher().get(f"http://rebinding.example:{port}/", 100)
            == f"rebinding.example:{port}".encode()
        )
