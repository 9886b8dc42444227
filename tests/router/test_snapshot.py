"""What the index knows, kept over a restart: all of it, used once the worker's events show that it holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from router.events import decode_batch
from router.feed import KvFeed
from router.messages import RouteRequest, WorkerInfo, WorkerKey
from router.selector import Router
from router.sequencer import FeedState
from router.snapshot import Position, SavedSource, SnapshotError, decode
from router.tiers import Tier
from tests.router.publisher import Publisher
from tests.router.test_feed import KEY, until
from tests.router.test_feed import stored as store_event
from tests.router.test_lookahead import vllm
from tests.router.test_selector import info, request
from tests.router.wire import DATA, payload, recorded_events, removed, state, stored, tokens

POSITION = Position(7, 99)


def file_of(router: Router, *keys: WorkerKey) -> bytes:
    return b"".join(router.save({key: lambda: POSITION for key in keys}))


def again(raw: bytes) -> tuple[Router, list[SavedSource]]:
    """A new router with the same workers and what the file has of them."""
    snapshot = decode(raw)
    router = Router("kv", snapshot.seed)
    for key in snapshot.sources:
        router.add_worker(info(key.worker))
    return router, list(snapshot.sources.values())


def restored(raw: bytes) -> Router:
    router, sources = again(raw)
    for source in sources:
        assert router.restore(source)
        router.set_feed_state(source.key, FeedState.EXACT)
    return router


def test_everything_comes_back() -> None:
    router = Router("kv")
    for name in ("a", "b", "c"):
        router.add_worker(info(name))
    twice = stored([1], range(100, 102))
    router.apply(WorkerKey("a"), [stored([1, 2, 3], range(100, 106)), state([2]), twice])
    orphan = stored([77], [5, 6], parent=76)
    router.apply(WorkerKey("b"), [stored([1, 2], range(100, 104), tier=Tier.HOST), orphan])
    router.apply(WorkerKey("c"), decode_batch(payload(vllm(list(range(100, 111)), 2))).events)
    other = restored(file_of(router, *map(WorkerKey, "abc")))
    ids = tokens(range(100, 111))
    for one, two in zip(router._roster.targets.values(), other._roster.targets.values(), strict=True):
        assert router._index.find(ids)[one.source] == other._index.find(ids)[two.source]
        assert one.source.rule == two.source.rule
        assert one.source.waiting == two.source.waiting
    other.apply(WorkerKey("a"), [removed([1])])
    assert {each.key.worker: each.indexed_blocks for each in other.snapshot_stats().targets}["a"] == 4
    assert other.route(request(exclude=frozenset("bc"))).overlap_tokens == 4, "one of two copies is left"


def test_blocks_by_the_engines_own_hashes_come_back() -> None:
    files = sorted(DATA.rglob("*.frames"))
    assert files
    for path in files:
        router = Router("kv")
        router.add_worker(info("w"))
        router.apply(WorkerKey("w"), recorded_events(path))
        other = restored(file_of(router, WorkerKey("w")))
        (one,), (two,) = router._roster.targets.values(), other._roster.targets.values()
        assert str(one.source.hashing) == str(two.source.hashing)
        assert one.source.blocks == two.source.blocks
        assert router._index._lookup.attention.keys() == other._index._lookup.attention.keys()


def test_what_is_not_verified_is_not_used() -> None:
    router = Router("kv")
    router.add_worker(info("a"))
    router.apply(WorkerKey("a"), [stored([1, 2, 3], range(100, 106))])
    raw = file_of(router, WorkerKey("a"))
    other, (source,) = again(raw)
    assert other.restore(source)
    assert not other.restore(source), "it holds something already"
    assert other.route(request()).overlap_tokens == 0
    (target,) = other.snapshot_stats().targets
    assert (target.knowledge, target.problem) == ("degraded", "a snapshot that is not verified yet")
    other.set_feed_state(WorkerKey("a"), FeedState.EXACT)
    assert other.route(request()).overlap_tokens == 6
    third, (source,) = again(raw)
    third.restore(source)
    third.clear(WorkerKey("a"))
    third.set_feed_state(WorkerKey("a"), FeedState.EXACT)
    assert third.route(request()).overlap_tokens == 0
    assert not Router("kv").restore(source), "no such worker"


@pytest.mark.parametrize(
    "raw", [b"", b"\0" * 7, b"\0" * 8 + b"x", (3).to_bytes(8, "big") + b"\x92\x09\x01", b"\xff" * 40]
)
def test_other_files_are_refused(raw: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode(raw)


def test_a_rank_without_a_position_is_left_out() -> None:
    router = Router("kv")
    router.add_worker(info("a"))
    raw = b"".join(router.save({WorkerKey("a"): lambda: None, WorkerKey("gone"): lambda: POSITION}))
    assert decode(raw).sources == {}


@asynccontextmanager
async def gateway(publisher: Publisher, raw: bytes | None = None) -> AsyncIterator[tuple[Router, KvFeed]]:
    """A router that follows a publisher, going on from a snapshot."""
    snapshot = None if raw is None else decode(raw)
    router = Router("kv", None if snapshot is None else snapshot.seed)
    router.add_worker(WorkerInfo(worker="w", models=["m"]))
    feed = KvFeed(
        KEY,
        publisher.endpoint,
        on_events=router.apply,
        on_clear=router.clear,
        on_state=router.set_feed_state,
        replay_endpoint=publisher.replay_endpoint,
    )
    if snapshot is not None:
        assert router.restore(snapshot.sources[KEY])
        feed.resume(snapshot.sources[KEY].position)
    feed.start()
    try:
        await until(lambda: feed.state is FeedState.EXACT)
        yield router, feed
    finally:
        await feed.stop()


def cached(router: Router, number: int) -> int:
    prompt = np.array([number, number + 1, 0], dtype=np.uint32)
    return router.route(RouteRequest(request_id="r", model="m", token_ids=prompt)).overlap_tokens


async def snapshot_of(publisher: Publisher) -> bytes:
    async with gateway(publisher) as (router, feed):
        return b"".join(router.save({KEY: lambda: feed.position}))


async def test_a_worker_that_goes_on_proves_the_snapshot_though_its_history_is_gone() -> None:
    publisher = Publisher()
    for number in (10, 20, 30):
        await publisher.publish(store_event(number))
    raw = await snapshot_of(publisher)
    publisher.kept = 2
    await publisher.publish(store_event(40))
    async with gateway(publisher, raw) as (router, feed):
        assert [cached(router, number) for number in (10, 20, 30, 40)] == [2, 2, 2, 2]
        assert feed.counters.batches == 1
    await publisher.close()


async def test_a_worker_that_restarted_meanwhile_voids_it() -> None:
    publisher = Publisher()
    await publisher.publish(store_event(10))
    raw = await snapshot_of(publisher)
    await publisher.close()
    new = Publisher(earlier=publisher)
    await new.publish(store_event(20))
    async with gateway(new, raw) as (router, _):
        assert [cached(router, number) for number in (10, 20)] == [0, 2]
    await new.close()
