"""Which batches of a KV event stream to apply, in which order, and how far the result can be trusted.

Pure: it is told what arrived and answers with actions. A publisher numbers its batches from 0 in each life
and keeps the last ones for replay. Three things must not be mixed up:

- a gap: numbers are missing. Replay from the last seen batch on, keep what arrives meanwhile, then go on.
- a restart: a new life began, its cache empty. Seen when a number comes again with another payload (batches
  carry their time, so payloads differ), or when a replay that includes the last seen batch does not give it.
- a repetition: the same batch through both channels. Dropped.
"""

from __future__ import annotations

from enum import Enum

import msgspec
import xxhash

_RECENT = 4096
"""Batches whose digest is kept to tell a repetition from a restart."""
_BEFORE_FIRST = -1


class FeedState(Enum):
    """How far what was applied equals what the worker holds."""

    EXACT = "exact"
    """Every batch of this life was applied."""
    DEGRADED = "degraded"
    """Something was lost, or cannot be checked right now."""
    APPROXIMATE = "approximate"
    """Nothing is known from events."""


class Deliver(msgspec.Struct, frozen=True):
    """Apply this batch."""

    serial: int
    """Counts deliveries over all lives; goes back with `cache_cleared` and `flawed`."""
    payload: bytes
    live: bool
    """Whether it has just been published (or was read from history)."""


class Clear(msgspec.Struct, frozen=True):
    """The worker holds nothing of what was applied before."""


class Replay(msgspec.Struct, frozen=True):
    """Ask the publisher for its batches from `start` on, and give up any replay under way.

    Always the last action of its list.
    """

    start: int


Action = Deliver | Clear | Replay


class SequencerCounters(msgspec.Struct):
    gaps: int = 0
    lost_batches: int = 0
    """Batches that no replay brought back."""
    restarts: int = 0
    repetitions: int = 0
    overflows: int = 0
    """Batches dropped while a replay ran because too many waited."""


class Sequencer:
    """One publisher's stream. Every method that returns actions wants them carried out in order."""

    def __init__(self, can_replay: bool, buffer_limit: int = 10_000) -> None:
        self.counters = SequencerCounters()
        self._can_replay = can_replay
        self._buffer_limit = buffer_limit
        self._buffer: list[tuple[int, bytes]] = []
        self._connected = False
        self._last: int | None = None
        """The last number applied; -1 when the life has said nothing yet; None when nothing is known."""
        self._recent: dict[int, int] = {}
        self._replaying = False
        self._same_life = False
        """Whether the replay under way has shown that it is of the life of `_last`."""
        self._triggered = False
        """Whether the first batch in the buffer came before the replay was asked for: it asks for none."""
        self._unchecked: str | None = None
        """Without replay: why it is open whether the life of `_last` goes on. The next batch tells."""
        self._flaw: str | None = None
        """What was lost of this life."""
        self._flaw_serial = 0
        """The delivery before which it was lost."""
        self._serial = 0
        self._life_serial = 0

    @property
    def state(self) -> FeedState:
        if self._reason is None:
            return FeedState.EXACT
        return FeedState.APPROXIMATE if self._last is None else FeedState.DEGRADED

    @property
    def reason(self) -> str:
        """Why the state is not EXACT; empty when it is."""
        return self._reason or ""

    @property
    def _reason(self) -> str | None:
        if not self._connected:
            return "not connected to the event endpoint"
        if self._replaying:
            return "a replay is under way"
        if self._unchecked is not None:
            return self._unchecked
        if self._flaw is None and self._last is None:
            return "no event seen yet"
        return self._flaw

    @property
    def position(self) -> tuple[int, int] | None:
        """The last batch applied and its payload's digest, while the picture is exact; else None."""
        if self.state is not FeedState.EXACT or self._last is None or self._last == _BEFORE_FIRST:
            return None
        return self._last, self._recent[self._last]

    def resume(self, sequence: int, digest: int) -> None:
        """Before the first connection: this batch was the last one applied, maybe in a life that goes on."""
        self._last = sequence
        self._recent = {sequence: digest}

    def connected(self) -> list[Action]:
        """The subscription is up, for the first time or again."""
        self._connected = True
        if self._can_replay:
            return self._begin_replay(triggered=False)
        if self._last is not None:
            self._unchecked = "reconnected, and nothing tells yet whether the worker restarted"
        return []

    def disconnected(self) -> None:
        """The subscription is down. What waited is in the next connection's replay, or lost."""
        self._connected = False
        self._replaying = self._triggered = False
        self._buffer.clear()

    def live(self, number: int, payload: bytes) -> list[Action]:
        """A batch was published."""
        if not self._replaying:
            return self._take(number, payload)
        if len(self._buffer) < self._buffer_limit:
            self._buffer.append((number, payload))
        else:
            self.counters.overflows += 1
        return []

    def replayed(self, number: int, payload: bytes) -> list[Action]:
        """The replay under way gave a batch."""
        if not self._replaying:
            return []
        last = self._last
        if last is None or last == _BEFORE_FIRST:
            return self._replayed_first(number, payload)
        if number <= last:
            if self._recent.get(number) != _digest(payload):
                return self._new_life()
            self._same_life = True
            return []
        if not self._same_life:
            # The batch to compare with has left the publisher's buffer, and most of what is known with it.
            self._same_life = True
            self.counters.lost_batches += number - last - 1
            self._mar(f"the replay begins at batch {number}, after {last}")
            return [Clear(), self._deliver(number, payload, live=False)]
        if number > last + 1:
            self._lose(number)
        return [self._deliver(number, payload, live=False)]

    def replay_ended(self) -> list[Action]:
        """The replay under way is complete."""
        if not self._replaying:
            return []
        if self._last is None:
            self._last = _BEFORE_FIRST
            self._flaw = None
        elif self._last != _BEFORE_FIRST and not self._same_life:
            return self._new_life()
        self._unchecked = None
        return self._end_replay()

    def replay_failed(self, reason: str) -> list[Action]:
        """The replay under way broke off."""
        if not self._replaying:
            return []
        cleared: list[Action] = []
        if not (self._triggered or self._same_life):
            # It was to tell whether the old life goes on. Believing so could mix two lives.
            cleared = [Clear()] if self._recent else []
            self._forget_life()
        if self._last is None:
            self._mar(f"the history could not be read: {reason}")
        return cleared + self._end_replay()

    def recheck(self) -> list[Action]:
        """Time has passed: try once more to read a history that could not be read."""
        if self._connected and self._can_replay and not self._replaying and self._last is None:
            return self._begin_replay(triggered=False)
        return []

    def cache_cleared(self, serial: int) -> None:
        """A delivered batch said that the worker holds nothing: what was lost before it no longer matters."""
        if self._flaw_serial <= serial:
            self._flaw = None

    def flawed(self, serial: int, reason: str) -> None:
        """A delivered batch could not be used."""
        if serial >= self._life_serial:
            self._mar(reason, serial + 1)

    def _take(self, number: int, payload: bytes, *, may_replay: bool = True) -> list[Action]:
        last = self._last
        if last is None:
            if number > 0 and may_replay and self._can_replay:
                return self._replay_for(number, payload)
            self._flaw = None
            if number > 0:
                self._mar(f"joined at batch {number}")
        elif number <= last:
            # After the replay that it asked for, the life is its own: it is only too old to be remembered.
            if not may_replay or self._recent.get(number) == _digest(payload):
                self.counters.repetitions += 1
                return []
            return self._live_of_new_life(number, payload)
        elif number > last + 1:
            if may_replay:
                self.counters.gaps += 1
                if self._can_replay:
                    return self._replay_for(number, payload)
            self._lose(number)
        self._unchecked = None
        return [self._deliver(number, payload, live=True)]

    def _live_of_new_life(self, number: int, payload: bytes) -> list[Action]:
        self.counters.restarts += 1
        self._forget_life()
        if number == 0:
            return [Clear(), self._deliver(number, payload, live=True)]
        if self._can_replay:
            return [Clear(), *self._replay_for(number, payload)]
        self._mar(f"joined a new life at batch {number}")
        return [Clear(), self._deliver(number, payload, live=True)]

    def _new_life(self) -> list[Action]:
        """The replay shows another life: read that from its start, with all that waited and is of it."""
        self.counters.restarts += 1
        self._forget_life()
        self._buffer.clear()
        return [Clear(), *self._begin_replay(triggered=False)]

    def _forget_life(self) -> None:
        self._last = None
        self._recent.clear()
        self._unchecked = None
        self._flaw = None
        self._life_serial = self._serial + 1

    def _replayed_first(self, number: int, payload: bytes) -> list[Action]:
        self._flaw = None
        if number > 0:
            self.counters.lost_batches += number
            self._mar(f"the history before batch {number} is gone")
        self._same_life = True
        return [self._deliver(number, payload, live=False)]

    def _replay_for(self, number: int, payload: bytes) -> list[Action]:
        """What comes before this batch is missing."""
        self._buffer.insert(0, (number, payload))
        return self._begin_replay(triggered=True)

    def _begin_replay(self, *, triggered: bool) -> list[Action]:
        self._replaying = True
        self._triggered = triggered
        self._same_life = False
        return [Replay(max(self._last or 0, 0))]

    def _end_replay(self) -> list[Action]:
        self._replaying = False
        waiting, self._buffer = self._buffer, []
        actions: list[Action] = []
        if self._triggered and waiting:
            actions += self._take(*waiting.pop(0), may_replay=False)
        for number, payload in waiting:
            actions += self.live(number, payload)
        return actions

    def _lose(self, number: int) -> None:
        lost = number - (self._last or 0) - 1
        self.counters.lost_batches += lost
        self._mar(f"{lost} batches before batch {number} are lost")

    def _mar(self, reason: str, before: int | None = None) -> None:
        """Something is missing before delivery `before`, by default the next one."""
        serial = self._serial + 1 if before is None else before
        self._flaw_serial = serial if self._flaw is None else max(serial, self._flaw_serial)
        self._flaw = reason

    def _deliver(self, number: int, payload: bytes, *, live: bool) -> Deliver:
        self._last = number
        self._recent[number] = _digest(payload)
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        self._serial += 1
        return Deliver(self._serial, payload, live)


def _digest(payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(payload)
