"""Pins and their leases, on a clock that the test turns."""

from __future__ import annotations

import asyncio

import pytest

from simulator.kv.leases import Leases


class Clock:
    """Stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    async def __call__(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        self.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def advance() -> Clock:
    return Clock()


@pytest.fixture
async def leases(advance: Clock, monkeypatch: pytest.MonkeyPatch) -> Leases:
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: advance.now)
    return Leases(30.0)


async def test_a_lease_runs_out_once(leases: Leases, advance: Clock) -> None:
    released: list[str] = []
    leases.pin("a", 3, lambda: released.append("a"))
    await advance(10)
    leases.pin("b", 4, lambda: released.append("b"))
    assert (len(leases), leases.blocks) == (2, 7)
    await advance(19.9)
    assert released == []
    await advance(0.2)
    assert (released, leases.expired, leases.blocks) == (["a"], 1, 4)
    await advance(10)
    assert (released, leases.expired, len(leases)) == (["a", "b"], 2, 0)


async def test_a_notification_frees_and_a_late_one_is_counted(leases: Leases, advance: Clock) -> None:
    released: list[str] = []
    leases.pin("a", 1, lambda: released.append("a"))
    leases.notified("a", 1)
    assert (released, leases.late_notifications) == (["a"], 0)
    leases.notified("a", 1)
    leases.notified("nobody", 1)
    assert (released, leases.late_notifications) == (["a"], 2)
    await advance(100)
    assert (released, leases.expired) == (["a"], 0)


async def test_every_consumer_has_to_say_so(leases: Leases) -> None:
    released: list[str] = []
    leases.pin("a", 1, lambda: released.append("a"))
    leases.notified("a", 2)
    assert released == []
    leases.notified("a", 2)
    assert released == ["a"]


async def test_heartbeats_keep_a_lease_alive(leases: Leases, advance: Clock) -> None:
    released: list[str] = []
    leases.pin("a", 1, lambda: released.append("a"))
    await advance(5)
    leases.heartbeat(["a", "unknown"])  # 20 s from here is less than what is left: nothing is lost
    await advance(24)
    assert released == []
    for _ in range(10):
        leases.heartbeat(["a"])
        await advance(19)
    assert released == []
    assert leases.heartbeats == 11
    await advance(2)
    assert (released, leases.expired) == (["a"], 1)


async def test_closing_releases_everything(leases: Leases, advance: Clock) -> None:
    released: list[str] = []
    leases.pin("a", 1, lambda: released.append("a"))
    leases.close()
    await advance(100)
    assert (released, leases.expired) == (["a"], 0)


async def test_heartbeats_are_due_six_times_a_lease(leases: Leases) -> None:
    assert leases.heartbeat_seconds == 5.0
