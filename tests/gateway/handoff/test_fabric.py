"""The pairs of a fleet, from what its workers tell: real side channels, real metric pages, no engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from gateway.config import Role, StartupError, WorkerSettings
from gateway.fleet.vitals import Transfers, Vitals
from gateway.fleet.worker import Profile, Worker
from gateway.handoff.fabric import Fabric, FabricPool
from gateway.handoff.links import LinkCost
from gateway.handoff.measured import read_links
from parsers.base import KvShape

SHAPE = KvShape(1000.0, 2)
NVLINK = {"host": "a", "nvlink": "true"}


def worker(name: str, role: Role, profile: dict[str, Any] | None = None, **settings: Any) -> Worker:
    made = Worker(WorkerSettings(url="http://h:1", name=name, role=role, pool="p", **settings))
    fields = {"engine": "vllm", "version": "1", "block_size": 16, **(profile or {})}
    made.profile = Profile(models=("m",), context_length=None, endpoint="generate", **fields)
    return made


def fabric(*workers: Worker, pool: FabricPool | None = None, **options: Any) -> Fabric:
    made = Fabric({"p": pool or FabricPool(shape=SHAPE)}, **options)
    for each in workers:
        made.joined(each)
    return made


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a fabric has no event for it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def side_channel(*replies: list[bytes]) -> AsyncIterator[str]:
    """A ROUTER that answers as a worker's scheduler does; the last reply again and again."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    left = list(replies)

    async def serve() -> None:
        while True:
            identity, _, request = await socket.recv_multipart()
            assert msgspec.msgpack.decode(request) == [b"get_meta_msg", 0, 0]
            await socket.send_multipart([identity, b"", *(left.pop(0) if len(left) > 1 else left[0])])

    task = asyncio.create_task(serve())
    try:
        yield f"127.0.0.1:{port}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.destroy(linger=0)


def told(compatibility: str, **metadata: Any) -> list[bytes]:
    inner = msgspec.msgpack.encode({"engine_id": "e", "block_size": 16, **metadata})
    payload = {"compatibility_hash": compatibility, "agent_metadata_bytes": inner}
    return [msgspec.msgpack.encode(payload), msgspec.msgpack.encode(1.0)]


async def test_a_transfer_costs_what_its_link_says_and_decode_is_priced_by_its_best_partner() -> None:
    near = worker("near", "prefill", labels=NVLINK)
    far = worker("far", "prefill", labels={"host": "b"})
    made = fabric(near, far, worker("d", "decode", labels=NVLINK))
    out, seconds = made.from_prefill("d", 1_000_000)
    assert out == frozenset()
    assert seconds["near"] == pytest.approx(1e-3 + 62_500 * 2 * 7.5e-6 + 1e9 / 251e9)
    assert seconds["far"] > seconds["near"]
    assert made.to_decode(1_000_000) == {"d": seconds["near"]}


async def test_a_probes_links_replace_what_labels_say() -> None:
    measured = {("p", "d"): LinkCost(1.0, 0.0, 1e9)}
    made = fabric(worker("p", "prefill"), worker("d", "decode"), measured=measured)
    assert made.to_decode(1_000_000) == {"d": 2.0}


async def test_impossible_pairs_are_excluded_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    other = worker("other", "prefill", {"version": "2"})
    made = fabric(worker("p", "prefill"), other, worker("d", "decode"))
    assert made.from_prefill("d", 10)[0] == {"other"}
    assert made.unpaired == frozenset()
    assert "other and d are no pair: version: 2 on prefill, 1 on decode" in caplog.text
    made.left(worker("p", "prefill"))
    assert made.unpaired == {"d"}
    names = {sample.name for family in made.metrics() for sample in family.samples}
    assert "kvgateway_pair_obstacle" in names
    assert made.describe() == [
        {"prefill": "other", "decode": "d", "obstacle": "version: 2 on prefill, 1 on decode"}
    ]


async def test_workers_of_different_pools_are_no_pairs() -> None:
    stranger = Worker(WorkerSettings(url="http://h:2", name="s", role="prefill", pool="q"))
    stranger.profile = worker("x", "prefill").profile
    made = fabric(stranger, worker("d", "decode"))
    assert made.to_decode(10) == {}
    assert made.obstacles == {}


async def test_compatibility_hashes_are_fetched_and_compared() -> None:
    async with side_channel(told("aa")) as one, side_channel(told("bb")) as two:
        same = worker("same", "prefill", side_channel=one)
        made = fabric(same, worker("p", "prefill", side_channel=two), worker("d", "decode", side_channel=one))
        await until(lambda: made.obstacles)
        assert made.obstacles == {("p", "d"): "compatibility hash: bb on prefill, aa on decode"}
        shaken = made.shaken("same")
        assert shaken is not None
        assert (shaken.engine_id, shaken.block_size) == ("e", 16)
        await made.close()


async def test_an_unknown_layout_of_the_metadata_still_gives_the_hash() -> None:
    async with side_channel(told("aa", block_size="many")) as address:
        made = fabric(worker("p", "prefill", side_channel=address))
        await until(lambda: made.shaken("p"))
        assert made.shaken("p").compatibility == "aa"  # type: ignore[union-attr]


async def test_nonsense_on_the_side_channel_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async with side_channel([b"nonsense"]) as address:
        made = fabric(worker("p", "prefill", side_channel=address))
        await until(lambda: "side channel of p" in caplog.text)
        assert made.shaken("p") is None


def reading(count: int, gigabytes: float, seconds: float) -> Vitals:
    return Vitals(transfers=Transfers(count, seconds, gigabytes * 1e9, 32.0 * count))


async def test_reported_transfers_correct_the_links_and_tell_a_slow_path(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prefill, decode = worker("p", "prefill", labels=NVLINK), worker("d", "decode", labels=NVLINK)
    made = fabric(prefill, decode)
    before = made.to_decode(1_000_000)["d"]
    made.looked(decode, reading(10, 100, 999))
    assert made.to_decode(1_000_000)["d"] == before
    made.looked(decode, reading(20, 110, 999.06))
    assert made.slow == {"d": False}
    assert made.to_decode(1_000_000)["d"] == pytest.approx(before, rel=0.2)
    made.looked(decode, reading(30, 120, 1025))
    assert made.slow == {"d": True}
    assert "transfers to d reach 0.39 GB/s: the path is not nvlink" in caplog.text
    assert made.to_decode(1_000_000)["d"] > 20 * before
    assert made.describe()[0]["slow"] is True


async def test_time_to_the_first_token_is_learned_by_pair() -> None:
    made = fabric(worker("p", "prefill"), worker("q", "prefill"), worker("d", "decode"))
    made.handed_over("q", "d", 1000, 5.0)
    made.handed_over("gone", "d", 1000, 5.0)
    _, seconds = made.from_prefill("d", 1000)
    assert seconds["q"] == pytest.approx(5.0)
    assert seconds["p"] < 0.1


async def test_links_keep_what_they_learned_when_others_come_and_go() -> None:
    made = fabric(worker("p", "prefill"), worker("d", "decode"))
    made.handed_over("p", "d", 1000, 5.0)
    made.joined(worker("q", "prefill"))
    made.left(worker("q", "prefill"))
    assert made.to_decode(1000)["d"] == pytest.approx(5.0)


def test_a_file_of_measured_links_is_read(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    link = {"prefill": "p", "decode": "d", "t0": 0.5, "descriptor": 0.25, "bandwidth": 1e9}
    path.write_bytes(msgspec.json.encode({"links": [link, {**link, "decode": "e", "bandwidth": 0.0}]}))
    assert read_links(str(path)) == {("p", "d"): LinkCost(0.5, 0.25, 1e9)}


@pytest.mark.parametrize("text", [None, b"{}", b"nonsense"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / "links.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(StartupError, match=r"measured_links: .*links\.json"):
        read_links(str(path))
