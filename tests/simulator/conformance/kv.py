"""The recorded KV event scenarios as requests.

The recorder kept events only, so each request is read back from them: the ids of full blocks are all there,
the scenario's note tells the lengths, and what stood in a last partial block is anybody's guess (`UNKNOWN`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.simulator.conformance.recorded import Message, read_frames, stored, tokens
from tests.simulator.conformance.rig import Ask, Rig

UNKNOWN = 11
STUB = [1, 67, 334, 75, 1632, 201]
"""The ids that end a chat prompt of the recorded model."""
EVICTING = 70
"""Blocks of the recorded worker's second life."""

Take = Callable[[str, list[Message]], Awaitable[None]]
"""Compares what the simulated worker published with what is recorded under a label."""


class Recorded:
    """The messages of each label."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, label: str) -> list[Message]:
        return read_frames(self._folder / f"{label}.frames")

    def tokens(self, label: str) -> list[int]:
        return tokens(self(label))


def pad(ids: list[int], length: int) -> list[int]:
    """Known ids, then unknown ones up to a length."""
    return ids + [UNKNOWN] * (length - len(ids))


async def first_life(rig: Rig, recorded: Recorded, take: Take) -> None:
    """Everything up to the restart."""
    fresh = recorded.tokens("01_fresh_100tok")

    async def one(label: str, ask: Ask) -> None:
        await rig.ask(ask)
        await take(label, await rig.messages())

    hundred = Ask(pad(fresh, 100), [UNKNOWN] * 4)
    await one("01_fresh_100tok", hundred)
    await one("02_repeat_same", hundred)
    shared = fresh[:64] + recorded.tokens("03_shared_prefix_64")
    await one("03_shared_prefix_64", Ask(shared, [UNKNOWN] * 4))
    await one("04_exact_multiple_96", Ask(fresh, [UNKNOWN] * 4))
    decoded = recorded.tokens("05_decode_fills_blocks")
    await one("05_decode_fills_blocks", Ask(fresh[:32] + decoded[:8], pad(decoded[8:], 60)))
    first = recorded.tokens("06_chat_turn1")
    await one("06_chat_turn1", _chat(first))
    await one("07_chat_turn2", _chat(first[:96] + recorded.tokens("07_chat_turn2")))
    await one("08_cache_salt", hundred._replace(salt="tenant-a"))
    answer = await rig.http("POST", "/reset_prefix_cache")
    assert answer.json == {"success": True}, answer
    await take("09_reset_prefix_cache", await rig.messages())
    await one("10_after_reset", hundred)
    await take("11_replay_from0_DEALER", await rig.replay(0))
    await take("11_replay_from0_REQ", await rig.replay_over_req(0))
    await take("12_replay_from5_DEALER", await rig.replay(5))
    await take("13_replay_future_DEALER", await rig.replay(99))
    await one("20_before_restart", Ask(pad(recorded.tokens("20_before_restart"), 70), [UNKNOWN] * 4))


async def second_life(rig: Rig, recorded: Recorded, take: Take) -> None:
    """After the restart, with a small pool."""
    await rig.stop()
    await rig.start(num_blocks=EVICTING, max_num_seqs=8, max_num_batched_tokens=2048)
    await take("21_during_restart", await rig.messages())
    await rig.ask(Ask(pad(recorded.tokens("22_after_restart"), 70), [UNKNOWN] * 4))
    await take("22_after_restart", await rig.messages())
    last_seen = recorded("20_before_restart")[-1].sequence
    await take("23_replay_after_restart_from_old_seq", await rig.replay(last_seen + 1))
    for index in range(4):
        await rig.ask(Ask(pad(recorded.tokens(f"30_evict_req{index}"), 700), [UNKNOWN] * 4))
        await take(f"30_evict_req{index}", await rig.messages())
    await _preemptions(rig, recorded)
    await take("31_evict_concurrent_preempt", await rig.messages())
    await rig.ask(Ask(pad(recorded.tokens("32_after"), 700), [UNKNOWN] * 4))
    await take("32_after", await rig.messages())
    await take("33_reset_while_running", await _reset_while_running(rig, recorded))
    await _duplicates(rig, recorded)
    await take("34_duplicate_block_store_and_evict", await rig.messages())


def _chat(ids: list[int]) -> Ask:
    """A chat's prompt ends with the last stub; what follows is the answer, of which a little is not known."""
    ends = [place for place in range(len(ids)) if ids[place : place + len(STUB)] == STUB]
    cut = ends[-1] + len(STUB)
    return Ask(ids[:cut], [*ids[cut:], UNKNOWN])


async def _preemptions(rig: Rig, recorded: Recorded) -> None:
    """Six requests of 600 and 200 tokens: one is being computed when the others come."""
    asks = [
        Ask(pad(ids, 800)[:600], pad(ids, 800)[600:])
        for ids in _paths(recorded("31_evict_concurrent_preempt"))
    ]
    counters = rig.engine.counters
    rig.pace(prefill_seconds_per_token=5e-4)
    running = [asyncio.create_task(rig.ask(asks[0]))]
    await rig.until(lambda: counters.running == 1)
    for waiting, ask in enumerate(asks[1:], 1):
        running.append(asyncio.create_task(rig.ask(ask)))
        await rig.until(lambda count=waiting: counters.waiting == count)  # type: ignore[misc]
    rig.pace()
    await asyncio.gather(*running)


def _paths(messages: list[Message]) -> list[list[int]]:
    """The longest run of ids from each first block, in the order in which these were stored."""
    following: dict[int | None, dict[int, list[int]]] = {}
    for event in stored(messages):
        parent, size = event["parent_block_hash"], event["block_size"]
        for place, block in enumerate(event["block_hashes"]):
            following.setdefault(parent, {})[block] = event["token_ids"][place * size : (place + 1) * size]
            parent = block
    return [_follow(following, block, ids) for block, ids in following[None].items()]


def _follow(following: dict[int | None, dict[int, list[int]]], block: int, ids: list[int]) -> list[int]:
    while block in following:
        ((block, more),) = following[block].items()
        ids = ids + more
    return ids


async def _reset_while_running(rig: Rig, recorded: Recorded) -> list[Message]:
    """Resets in the fifth block of a long answer: in vain, then with the running request started anew."""
    first, *_, last = [place for place, event in enumerate(stored(recorded("33_reset_while_running")))]
    events = stored(recorded("33_reset_while_running"))
    anew = next(place for place in range(first + 1, last) if events[place]["parent_block_hash"] is None)
    ids = [token_id for event in events[anew:] for token_id in event["token_ids"]]
    rig.pace(decode_seconds_per_step=0.02)
    running = asyncio.create_task(rig.ask(Ask(ids[:64], pad(ids[64:], 1500))))
    found: list[Message] = []
    while len(found) < 6:
        found += await rig.messages()
        await asyncio.sleep(0.002)
    in_vain = await rig.http("POST", "/reset_prefix_cache")
    anyway = await rig.http("POST", "/reset_prefix_cache?reset_running_requests=true")
    assert (in_vain.json, anyway.json) == ({"success": False}, {"success": True})
    rig.pace()
    await running
    return found + await rig.messages()


async def _duplicates(rig: Rig, recorded: Recorded) -> None:
    """After a reset one prompt three times, then others until all its blocks are gone."""
    await rig.http("POST", "/reset_prefix_cache")
    events = stored(recorded("34_duplicate_block_store_and_evict"))
    for _ in range(3):
        await rig.ask(Ask(events[0]["token_ids"], [UNKNOWN] * 2))
    for event in events[3:]:
        await rig.ask(Ask(pad(event["token_ids"], 700), [UNKNOWN] * 4))
