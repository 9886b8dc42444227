"""Fetching what a client names by URL, without becoming its way into the network.

A name is resolved once, by the resolver below, and the connection goes to an address that it has checked; an
address in a URL is checked before that. Redirects are followed by hand, each as a URL of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway.media.addresses import Address, is_public

MAX_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK = 64 * 1024


class FetchError(Exception):
    """It cannot be had; the message is for the client and tells nothing of the network."""


class _CheckedResolver(AbstractResolver):
    """Gives addresses that may be fetched from, or none."""

    def __init__(self, allowed: Callable[[Address], bool]) -> None:
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        addresses = {str(info[4][0]): info for info in found}
        if not addresses or not all(self._allowed(ipaddress.ip_address(each)) for each in addresses):
            raise OSError("the host has an address that is not public")
        return [_result(host, address, port, info[0]) for address, info in addresses.items()]

    async def close(self) -> None: ...


def _result(host: str, address: str, port: int, family: int) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=family,
        proto=0,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )


class Fetcher:
    """GET within bounds. One connection a fetch: nothing is kept, no cookies, no proxies, no compression."""

    def __init__(self, seconds: float, allowed: Callable[[Address], bool] = is_public) -> None:
        """`seconds` bound a fetch from its first redirect to its last byte."""
        self._seconds = seconds
        self._allowed = allowed

    async def get(self, url: str, max_bytes: int) -> bytes:
        """The body of a 200 answer. Raises FetchError."""
        try:
            async with asyncio.timeout(self._seconds), self._session() as session:
                return await self._follow(session, url, max_bytes)
        except TimeoutError:
            raise FetchError(f"it did not come within {self._seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise FetchError("it could not be fetched") from None

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(self._allowed), use_dns_cache=False, force_close=True, limit=1
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "kvgateway"},
        )

    async def _follow(self, session: aiohttp.ClientSession, url: str, max_bytes: int) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            target = self._checked(url)
            async with session.get(target, allow_redirects=False) as response:
                if response.status in _REDIRECTS and "Location" in response.headers:
                    url = urljoin(str(target), response.headers["Location"])
                    continue
                if response.status != 200:
                    raise FetchError(f"its server answered {response.status}")
                return await _read(response, max_bytes)
        raise FetchError("it is redirected too often")

    def _checked(self, url: str) -> URL:
        """The URL, if it is one to fetch from. Raises FetchError, ValueError."""
        target = URL(url)
        if target.scheme not in ("http", "https") or not target.host:
            raise FetchError("its URL must begin with http://, https:// or data:")
        if target.user is not None or target.password is not None:
            raise FetchError("its URL must not have a user or a password")
        try:
            address: Any = ipaddress.ip_address(target.host)
        except ValueError:
            return target  # a name: the resolver checks its addresses
        if not self._allowed(address):
            raise FetchError("it could not be fetched")
        return target


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    if (response.content_length or 0) > max_bytes:
        raise FetchError(f"it is larger than {max_bytes} bytes")
    data = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK):
        data += chunk
        if len(data) > max_bytes:
            raise FetchError(f"it is larger than {max_bytes} bytes")
    return bytes(data)
