"""What a loop that stood still may have left unread."""

from __future__ import annotations

import asyncio
import time

from gateway.handoff.pulse import Pulse


async def test_while_the_loop_runs_it_is_at_most_two_ticks_behind() -> None:
    pulse = Pulse(0.02)
    pulse.begin()
    await asyncio.sleep(0.2)
    assert 0 <= asyncio.get_running_loop().time() - pulse.read_until < 0.15
    pulse.end()


async def test_after_the_loop_stood_still_it_shows_when_that_began() -> None:
    pulse = Pulse(0.02)
    pulse.begin()
    await asyncio.sleep(0.1)
    began = asyncio.get_running_loop().time()
    time.sleep(0.3)  # noqa: ASYNC251 - the loop is to stand still
    for _ in range(2):  # at most one tick comes before what waited in a socket is read
        assert pulse.read_until <= began
        await asyncio.sleep(0)
    pulse.end()


async def test_it_rests_when_no_leg_is_under_way() -> None:
    pulse = Pulse(0.01)
    pulse.begin()
    pulse.begin()
    pulse.end()
    before = pulse.read_until
    await asyncio.sleep(0.1)
    assert pulse.read_until > before
    pulse.end()
    last = pulse.read_until
    await asyncio.sleep(0.05)
    assert pulse.read_until == last
