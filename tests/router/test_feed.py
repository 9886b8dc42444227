"""The feed against a real publisher on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from router.events import AllBlocksCleared, KvEvent
from router.feed import KvFeed
from router.messages import Release, RouteRequest, WorkerInfo, WorkerKey
from router.selector import Router
from router.sequencer import FeedState
from tests.router.publisher import Publisher

KEY = WorkerKey("w")
EXACT, DEGRADED, APPROXIMATE = FeedState.EXACT, FeedState.DEGRADED, FeedState.APPROXIMATE


class Sink:
    """What a feed said: first block hashes in order, and "clear"."""

    def __init__(self) -> None:
        self.seen: list[int | bytes | str] = []

    def on_events(self, key: WorkerKey, events: Sequence[KvEvent]) -> None:
        assert key == KEY
        for event in events:
            self.seen.append("cleared" if isinstance(event, AllBlocksCleared) else event.block_hashes[0])

    def on_clear(self, key: WorkerKey) -> None:
        assert key == KEY
        self.seen.append("clear")


def stored(number: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [number],
        "parent_block_hash": None,
        "token_ids": [number, number + 1],
        "block_size": 2,
    }


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in other tasks and in libzmq
            await asyncio.sleep(0.005)


@asynccontextmanager
async def following(publisher: Publisher, sink: Sink, **options: Any) -> AsyncIterator[KvFeed]:
    """A started feed; it has begun to follow, and is stopped at the end."""
    options.setdefault("replay_endpoint", publisher.replay_endpoint)
    feed = KvFeed(KEY, publisher.endpoint, on_events=sink.on_events, on_clear=sink.on_clear, **options)
    feed.start()
    try:
        yield feed
    finally:
        await feed.stop()


async def test_history_and_live_batches_arrive_in_order() -> None:
    publisher, sink = Publisher(), Sink()
    for number in range(3):
        await publisher.publish(stored(number))
    async with following(publisher, sink, topic="kv") as feed:
        await until(lambda: feed.state is EXACT)
        assert sink.seen == [0, 1, 2]
        await publisher.subscribed()
        await publisher.publish(stored(3), {"type": "AllBlocksCleared"}, {"type": "OfLater"})
        await publisher.publish(stored(4))
        await until(lambda: len(sink.seen) == 6)
        assert sink.seen == [0, 1, 2, 3, "cleared", 4]
        assert (feed.counters.batches, feed.counters.events, feed.counters.unknown_events) == (5, 6, 1)
        assert (feed.counters.connections, feed.counters.replays) == (1, 1)
        assert 0 <= feed.counters.lag_seconds < 10
        assert "w/0" in repr(feed)
    await publisher.close()


async def test_a_gap_is_filled_by_replay() -> None:
    publisher, sink = Publisher(), Sink()
    async with following(publisher, sink) as feed:
        await publisher.subscribed()
        await until(lambda: feed.state is EXACT)
        await publisher.publish(stored(0))
        await publisher.publish(stored(1), send=False)
        await publisher.publish(stored(2))
        await until(lambda: len(sink.seen) == 3)
        await until(lambda: feed.state is EXACT)
        assert sink.seen == [0, 1, 2]
        assert feed.sequence.gaps == 1
        assert publisher.requests == [0, 0]
    await publisher.close()


async def test_a_restart_clears_and_reads_the_new_life() -> None:
    old, sink = Publisher(), Sink()
    for number in range(3):
        await old.publish(stored(number))
    async with following(old, sink) as feed:
        await until(lambda: feed.state is EXACT)
        await old.close()
        await until(lambda: feed.state is DEGRADED)
        new = Publisher(earlier=old)
        for number in range(10, 15):
            await new.publish(stored(number))
        await until(lambda: feed.state is EXACT)
        assert sink.seen == [0, 1, 2, "clear", 10, 11, 12, 13, 14]
        assert feed.sequence.restarts == 1
        assert new.requests == [2, 0]
        assert feed.counters.connections == 2
    await new.close()


async def test_a_silent_restart_is_noticed_at_once() -> None:
    old, sink = Publisher(), Sink()
    await old.publish(stored(0))
    async with following(old, sink) as feed:
        await until(lambda: feed.state is EXACT)
        await old.close()
        new = Publisher(earlier=old)
        await until(lambda: sink.seen == [0, "clear"])
        await until(lambda: feed.state is EXACT)
    await new.close()


async def test_a_lost_connection_to_the_same_life_changes_nothing() -> None:
    publisher, sink = Publisher(), Sink()
    await publisher.publish(stored(0))
    async with following(publisher, sink) as feed:
        await until(lambda: feed.state is EXACT)
        endpoint = publisher.endpoint
        publisher.pub.unbind(endpoint)
        publisher.pub.close()
        await until(lambda: feed.state is DEGRADED)
        await publisher.publish(stored(1), send=False)
        publisher.pub = publisher.context.socket(1)
        publisher.pub.setsockopt(17, 0)
        publisher.pub.bind(endpoint)
        await until(lambda: feed.state is EXACT)
        assert sink.seen == [0, 1]
        assert feed.sequence.restarts == 0
    await publisher.close()


async def test_without_a_replay_endpoint() -> None:
    publisher, sink = Publisher(), Sink()
    async with following(publisher, sink, replay_endpoint=None) as feed:
        await publisher.subscribed()
        await until(lambda: feed.counters.connections == 1)
        assert feed.state is APPROXIMATE
        await publisher.publish(stored(0))
        await until(lambda: feed.state is EXACT)
        await publisher.publish(stored(1), send=False)
        await publisher.publish(stored(2))
        await until(lambda: feed.state is DEGRADED)
        assert "lost" in feed.reason
        await publisher.publish({"type": "AllBlocksCleared"})
        await until(lambda: feed.state is EXACT)
        assert sink.seen == [0, 2, "cleared"]
    await publisher.close()


async def test_a_replay_that_is_not_answered() -> None:
    publisher, sink = Publisher(), Sink()
    publisher.answering = False
    await publisher.publish(stored(0))
    async with following(publisher, sink, replay_timeout=0.1) as feed:
        await until(lambda: feed.counters.replay_failures == 1)
        await publisher.subscribed()
        assert feed.state is APPROXIMATE
        assert "no answer" in feed.reason
        await publisher.publish(stored(1))
        await until(lambda: feed.state is DEGRADED)
        assert sink.seen == [1]
    await publisher.close()


async def test_a_history_that_could_not_be_read_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.feed._RECHECK_MILLISECONDS", 20)
    publisher, sink = Publisher(), Sink()
    publisher.answering = False
    await publisher.publish(stored(0))
    async with following(publisher, sink, replay_timeout=0.05) as feed:
        await until(lambda: feed.counters.replay_failures == 2)
        publisher.answering = True
        await until(lambda: feed.state is EXACT)
        assert sink.seen == [0]
    await publisher.close()


async def test_malformed_messages_are_counted_and_do_not_stop_it() -> None:
    publisher, sink = Publisher(), Sink()
    async with following(publisher, sink, topic="k") as feed:
        await publisher.subscribed()
        await until(lambda: feed.state is EXACT)
        await publisher.pub.send_multipart([b"kv"])
        await publisher.pub.send_multipart([b"kv", b"short", b"x"])
        await publisher.publish(stored(0))
        await until(lambda: sink.seen == [0])
        assert feed.counters.malformed == 2
        assert feed.state is EXACT
        await publisher.publish_raw(b"\xc1 not msgpack")
        await publisher.publish(stored(2))
        await until(lambda: sink.seen == [0, 2])
        assert feed.counters.malformed == 3
        assert feed.state is DEGRADED
    await publisher.close()


async def test_a_failing_sink_does_not_stop_it() -> None:
    publisher, sink = Publisher(), Sink()

    def fail(key: WorkerKey, events: Sequence[KvEvent]) -> None:
        sink.on_events(key, events)
        if len(sink.seen) == 1:
            raise RuntimeError("no room")

    for number in range(2):
        await publisher.publish(stored(number))
    feed = KvFeed(
        KEY,
        publisher.endpoint,
        on_events=fail,
        on_clear=sink.on_clear,
        replay_endpoint=publisher.replay_endpoint,
    )
    feed.start()
    await until(lambda: feed.state is DEGRADED and not feed.reason.startswith("a replay"))
    assert sink.seen == [0, 1]
    assert feed.counters.errors == 1
    await feed.stop()
    await publisher.close()


async def test_a_missing_endpoint_is_a_state_and_no_error() -> None:
    sink = Sink()
    vanished = Publisher()
    await vanished.close()
    feed = KvFeed(KEY, vanished.endpoint, on_events=sink.on_events, on_clear=sink.on_clear)
    feed.start()
    feed.start()
    await asyncio.sleep(0.1)
    assert feed.state is APPROXIMATE
    assert feed.reason == "not connected to the event endpoint"
    await feed.stop()
    await feed.stop()


async def test_an_endpoint_that_is_none_is_told_and_tried_again() -> None:
    sink = Sink()
    feed = KvFeed(KEY, "nonsense", on_events=sink.on_events, on_clear=sink.on_clear)
    feed.start()
    await until(lambda: feed.counters.errors > 0)
    assert feed.state is APPROXIMATE
    assert "(" in feed.reason
    await feed.stop()


async def test_a_worker_that_comes_up_later_is_followed() -> None:
    sink = Sink()
    first = Publisher()
    await first.close()
    async with following(first, sink) as feed:
        await asyncio.sleep(0.05)
        assert feed.state is APPROXIMATE
        late = Publisher(earlier=first)
        await late.publish(stored(0))
        await until(lambda: sink.seen == [0])
        await until(lambda: feed.state is EXACT)
    await late.close()


async def test_a_burst_leaves_the_loop_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.feed._SLICE_SECONDS", 0.0)
    publisher, sink = Publisher(), Sink()
    for number in range(300):
        await publisher.publish(stored(number))
    most_at_once = 0
    async with following(publisher, sink) as feed:
        while feed.state is not EXACT:
            before = len(sink.seen)
            await asyncio.sleep(0)
            most_at_once = max(most_at_once, len(sink.seen) - before)
    assert sink.seen == list(range(300))
    assert most_at_once <= 2
    await publisher.close()


async def test_it_can_be_stopped_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.feed._SLICE_SECONDS", 0.0)
    publisher, sink = Publisher(), Sink()
    for number in range(1000):
        await publisher.publish(stored(number))
    async with following(publisher, sink):
        while not sink.seen:  # noqa: ASYNC110 - one turn of the loop at a time
            await asyncio.sleep(0)
    seen = len(sink.seen)
    await publisher.publish(stored(1000))
    await asyncio.sleep(0.02)
    assert len(sink.seen) == seen < 1000
    await publisher.close()


async def test_a_router_learns_from_a_feed() -> None:
    publisher = Publisher()
    router = Router("kv", seed=1)
    router.add_worker(WorkerInfo(worker="w", models=["m"]))
    feed = KvFeed(
        KEY,
        publisher.endpoint,
        on_events=router.apply,
        on_clear=router.clear,
        on_state=router.set_feed_state,
        replay_endpoint=publisher.replay_endpoint,
    )

    def known() -> tuple[str, str]:
        (target,) = router.snapshot_stats().targets
        return target.knowledge, target.problem

    await publisher.publish(stored(5))
    assert known() == ("exact", "")
    feed.start()
    assert known() == ("approximate", "not connected to the event endpoint")
    await until(lambda: feed.state is EXACT)
    assert known() == ("exact", "")
    prompt = np.array([5, 6, 7], dtype=np.uint32)
    placement = router.route(RouteRequest(request_id="r", model="m", token_ids=prompt))
    assert placement.overlap_tokens == 2
    router.release(Release(placement.reservation))
    await feed.stop()
    assert known() == ("degraded", "not connected to the event endpoint")
    await publisher.close()
