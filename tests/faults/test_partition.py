"""A worker in a network namespace whose link goes down: no byte, no FIN, no RST comes from it any more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from loadtests.chaos.client import Client
from loadtests.chaos.fleet import Fleet, Seat, until
from tests.faults.conftest import GATEWAY, QUICK, WORKERS, Bench, assert_right
from tests.namespaces import ip, remove, why_not

NAME = f"kvgw{os.getpid()}"
HOST, GUEST = "10.213.77.1", "10.213.77.2"


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """A namespace with one link to this one."""
    if reason := why_not():
        pytest.skip(reason)
    try:
        ip("netns", "add", NAME)
        ip("link", "add", NAME[:13] + "h", "type", "veth", "peer", "name", "eth0", "netns", NAME)
        ip("addr", "add", f"{HOST}/24", "dev", NAME[:13] + "h")
        ip("link", "set", NAME[:13] + "h", "up")
        ip("-n", NAME, "addr", "add", f"{GUEST}/24", "dev", "eth0")
        ip("-n", NAME, "link", "set", "eth0", "up")
        ip("-n", NAME, "link", "set", "lo", "up")
        yield NAME
    finally:
        remove(NAME)


@pytest.fixture
async def split(namespace: str, tmp_path: object, bench: Bench) -> AsyncIterator[Fleet]:
    """A worker on the other side of the link, and one here; the link is up before and after."""
    inside = {"transport": "none"}
    seats = (
        Seat("far", "aggregated", "both", inside, GUEST, ("ip", "netns", "exec", namespace)),
        Seat("near", "aggregated", "both", inside),
    )
    fleet = Fleet(bench.fleet.folder, seats, WORKERS)
    fleet.add_gateway("split", GATEWAY | QUICK | {"policy": "round_robin"})
    try:
        await fleet.start()
        yield fleet
        ip("-n", namespace, "link", "set", "eth0", "up")
        await fleet.whole()  # it comes back by itself
        for name in ("router_reservations", "queued_requests"):
            assert await fleet.gateways[0].metric(name) == 0
    finally:
        fleet.stop()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_in_mid_answer(bench: Bench, namespace: str, split: Fleet, stream: bool) -> None:
    texts = [bench.prompt() for _ in range(2)]
    rights = [await bench.right(text, "both", stream=stream) for text in texts]
    client = Client(split.gateways[0].url)
    asking = [asyncio.create_task(client.chat(text, model="both", stream=stream)) for text in texts]

    async def runs() -> bool:
        return bool((await split.workers["far"].state()).get("running"))

    await until(runs, "the far worker has one")
    await asyncio.sleep(0.2)
    ip("-n", namespace, "link", "set", "eth0", "down")
    for answer, right in zip(await asyncio.gather(*asking), rights, strict=True):
        assert_right(answer, right)


async def test_before_a_request(bench: Bench, namespace: str, split: Fleet) -> None:
    texts = [bench.prompt() for _ in range(2)]
    rights = [await bench.right(text, "both") for text in texts]
    client = Client(split.gateways[0].url)
    ip("-n", namespace, "link", "set", "eth0", "down")
    asking = [asyncio.create_task(client.chat(text, model="both")) for text in texts]
    for answer, right in zip(await asyncio.gather(*asking), rights, strict=True):
        assert_right(answer, right)
