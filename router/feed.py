"""One worker rank's KV events over ZeroMQ: thin I/O around `Sequencer`.

A connection has its own SUB socket and monitor: what a lost connection left unread is dropped, because the
replay that follows each connection brings it again (and because it may be of an older life).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from router.events import AllBlocksCleared, KvBatch, KvEvent, MalformedEventError, decode_batch
from router.messages import WorkerKey
from router.sequencer import Action, Clear, Deliver, FeedState, Replay, Sequencer, SequencerCounters
from router.slices import slices
from router.snapshot import Position

_LOG = logging.getLogger(__name__)
_SLICE_SECONDS = 0.002
"""Work between two chances for other tasks."""
_RECEIVE_LIMIT = 100_000
_END_OF_REPLAY = -1
_RECHECK_MILLISECONDS = 10_000
"""Silence after which a replay that failed is tried again."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
"""Seconds between attempts after an error."""

EventSink = Callable[[WorkerKey, Sequence[KvEvent]], None]
ClearSink = Callable[[WorkerKey], None]
StateSink = Callable[[WorkerKey, FeedState, str], None]


class FeedCounters(msgspec.Struct):
    """Counters since the start of the feed."""

    batches: int = 0
    events: int = 0
    unknown_events: int = 0
    malformed: int = 0
    """Messages that could not be used."""
    connections: int = 0
    replays: int = 0
    replay_failures: int = 0
    errors: int = 0
    """Failures of the transport or of a sink."""
    lag_seconds: float = 0.0
    """Age of the last live batch when it was applied, by both machines' clocks."""


class KvFeed:
    """Follows a publisher and hands its events on. Runs in one task of the current event loop.

    The sinks are called inside the loop and must not block: `Router.apply`, `Router.clear` and
    `Router.set_feed_state` fit.
    """

    def __init__(
        self,
        key: WorkerKey,
        endpoint: str,
        *,
        on_events: EventSink,
        on_clear: ClearSink,
        on_state: StateSink | None = None,
        replay_endpoint: str | None = None,
        topic: str = "",
        replay_timeout: float = 5.0,
        context: zmq.asyncio.Context | None = None,
    ) -> None:
        """`endpoint` and `replay_endpoint` are URLs that can be connected to (no `*`).

        `replay_timeout` is the longest silence of a replay, in seconds. Nothing is opened before `start`.
        """
        self.key = key
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.counters = FeedCounters()
        self._on_events = on_events
        self._on_clear = on_clear
        self._on_state = on_state
        self._told: tuple[FeedState, str] | None = None
        self._topic = topic.encode()
        self._replay_timeout = replay_timeout
        self._context = context
        self._sequencer = Sequencer(can_replay=replay_endpoint is not None)
        self._failure = ""
        self._task: asyncio.Task[None] | None = None
        self._slice_end = 0.0
        self._applying = False

    def __repr__(self) -> str:
        return (
            f"<KvFeed {self.key.worker}/{self.key.dp_rank} {self.endpoint} {self.state.value}: {self.reason}>"
        )

    @property
    def state(self) -> FeedState:
        return self._sequencer.state

    @property
    def reason(self) -> str:
        """Why the state is not EXACT; empty when it is."""
        reason = self._sequencer.reason
        return f"{reason} ({self._failure})" if reason and self._failure else reason

    @property
    def sequence(self) -> SequencerCounters:
        """Gaps, lost batches, restarts."""
        return self._sequencer.counters

    @property
    def position(self) -> Position | None:
        """How far the events were applied, while the picture is exact."""
        position = self._sequencer.position
        return None if position is None or self._applying else Position(*position)

    def resume(self, position: Position) -> None:
        """Before `start`: what was applied up to there is known; a replay is to show if it still holds."""
        self._sequencer.resume(position.sequence, position.digest)

    def start(self) -> None:
        """Begin in the running event loop. A second call changes nothing."""
        if self._task is None:
            self._tell_state()
            name = f"kv-feed {self.key.worker}/{self.key.dp_rank}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def stop(self) -> None:
        """End the task and close its sockets. Safe at any time; no sink is called afterwards."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            connections = self.counters.connections
            try:
                await self._follow_connection()
            except Exception as error:  # whatever a peer sends, a feed never takes the service down
                self.counters.errors += 1
                self._failure = str(error) or type(error).__name__
                _LOG.warning("KV events of %s: %s", self.key, self._failure)
                pause = min(2 * pause, _LONGEST_PAUSE)
                await asyncio.sleep(pause)
            if self.counters.connections > connections:
                pause = _FIRST_PAUSE

    async def _follow_connection(self) -> None:
        """One connection of the subscription, from the attempt to its loss."""
        subscriber = self._socket(zmq.SUB)
        monitor = None
        try:
            subscriber.setsockopt(zmq.SUBSCRIBE, self._topic)
            # Keepalive finds a peer that vanished without closing; a publisher may be silent for hours.
            subscriber.setsockopt(zmq.TCP_KEEPALIVE, 1)
            subscriber.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
            subscriber.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
            monitor = subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            subscriber.connect(self.endpoint)
            await _handshake(monitor)
            self.counters.connections += 1
            self._failure = ""
            await self._carry_out(self._sequencer.connected())
            await self._receive(subscriber, monitor)
        finally:
            self._sequencer.disconnected()
            self._tell_state()
            subscriber.disable_monitor()
            subscriber.close()
            if monitor is not None:
                monitor.close()

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = (self._context or zmq.asyncio.Context.instance()).socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, _RECEIVE_LIMIT)
        return socket

    async def _receive(self, subscriber: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        """Take messages until the connection is lost."""
        poller = zmq.asyncio.Poller()
        poller.register(subscriber, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        while not _readable(monitor):
            if not await poller.poll(_RECHECK_MILLISECONDS):
                await self._carry_out(self._sequencer.recheck())
            with suppress(zmq.Again):
                while True:
                    frames = await subscriber.recv_multipart(zmq.NOBLOCK)
                    if _readable(monitor):
                        return
                    await self._on_message(frames)

    async def _on_message(self, frames: list[bytes]) -> None:
        number = _number(frames)
        if number is None or number < 0:
            self.counters.malformed += 1
        else:
            await self._carry_out(self._sequencer.live(number, frames[-1]))

    async def _carry_out(self, actions: list[Action]) -> None:
        self._applying = True  # if this breaks off, what was applied is not what was counted
        while actions:
            await self._apply(actions)
            last = actions[-1]
            actions = await self._replay(last.start) if isinstance(last, Replay) else []
        self._applying = False
        self._tell_state()

    async def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Deliver):
                await self._deliver(action)
            elif isinstance(action, Clear):
                self._sink(self._on_clear, self.key)

    async def _replay(self, start: int) -> list[Action]:
        """Read the publisher's history from batch `start` on; answers what the sequencer wants next."""
        self.counters.replays += 1
        dealer = self._socket(zmq.DEALER)
        try:
            dealer.connect(self.replay_endpoint or "")
            await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(self._replay_timeout):
                    frames = await dealer.recv_multipart()
                number = _number(frames)
                if number == _END_OF_REPLAY:
                    return self._sequencer.replay_ended()
                if number is None:
                    raise zmq.ZMQError(msg="a reply without a batch number")
                actions = self._sequencer.replayed(number, frames[-1])
                if actions and isinstance(actions[-1], Replay):
                    return actions
                await self._apply(actions)
        except (TimeoutError, zmq.ZMQError) as error:
            self.counters.replay_failures += 1
            reason = str(error) or f"no answer from {self.replay_endpoint} within {self._replay_timeout} s"
            _LOG.warning("KV event replay of %s: %s", self.key, reason)
            return self._sequencer.replay_failed(reason)
        finally:
            dealer.close()

    async def _deliver(self, action: Deliver) -> None:
        try:
            batch = decode_batch(action.payload)
        except MalformedEventError as error:
            self.counters.malformed += 1
            self._sequencer.flawed(action.serial, str(error))
            _LOG.warning("KV events of %s: %s", self.key, error)
            return
        self._count(batch, action.live)
        for part in slices(batch.events):
            if not self._sink(self._on_events, self.key, part):
                self._sequencer.flawed(action.serial, "events could not be applied")
            await self._breathe()
        if any(isinstance(event, AllBlocksCleared) for event in batch.events):
            self._sequencer.cache_cleared(action.serial)

    def _count(self, batch: KvBatch, live: bool) -> None:
        self.counters.batches += 1
        self.counters.events += len(batch.events)
        self.counters.unknown_events += batch.unknown
        if live:
            self.counters.lag_seconds = max(0.0, time.time() - batch.timestamp)

    def _sink(self, sink: Callable[..., None], *arguments: object) -> bool:
        try:
            sink(*arguments)
        except Exception:
            self.counters.errors += 1
            _LOG.exception("KV events of %s", self.key)
            return False
        return True

    def _tell_state(self) -> None:
        if self._on_state is None or self._told == (now := (self.state, self.reason)):
            return
        self._told = now
        self._sink(self._on_state, self.key, *now)

    async def _breathe(self) -> None:
        """Let other tasks run when this one has had its slice of time."""
        if time.monotonic() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = time.monotonic() + _SLICE_SECONDS


def _number(frames: list[bytes]) -> int | None:
    """The batch number; read from the right, because replies gained a topic frame over time."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    return int.from_bytes(frames[-2], "big", signed=True)


def _readable(socket: zmq.asyncio.Socket) -> bool:
    events = socket.getsockopt(zmq.EVENTS)
    return isinstance(events, int) and bool(events & zmq.POLLIN)


async def _handshake(monitor: zmq.asyncio.Socket) -> None:
    """Return when the connection is up; until then libzmq keeps trying."""
    while parse_monitor_message(await monitor.recv_multipart())["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
        pass
