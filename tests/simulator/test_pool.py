"""The pool against a slow model that keeps everything in plain lists, and the recorded evictions."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from simulator.cache import KVCache
from simulator.hashing import chain, event_hash, root_digest
from simulator.pool import BlockPool, PoolExhaustedError

ROOT = root_digest("0")


class SlowPool:
    """The same rules, told once more: a list of (block, digest) in the order in which they go."""

    def __init__(self, num_blocks: int) -> None:
        self.queue: list[int] = list(range(1, num_blocks))
        self.users: dict[int, int] = {}
        self.kept: list[tuple[bytes, int]] = []

    def match(self, digests: list[bytes], limit: int) -> list[int]:
        found: list[int] = []
        for digest in digests[:limit]:
            blocks = [block for kept, block in self.kept if kept == digest]
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def use(self, blocks: list[int]) -> None:
        for block in blocks:
            self.users[block] = self.users.get(block, 0) + 1
            self.queue = [other for other in self.queue if other != block]

    def allocate(self, count: int) -> tuple[list[int], list[bytes]]:
        blocks, self.queue = self.queue[:count], self.queue[count:]
        lost = []
        for block in blocks:
            self.users[block] = 1
            lost += [digest for digest, kept in self.kept if kept == block]
            self.kept = [entry for entry in self.kept if entry[1] != block]
        return blocks, lost

    def hold(self, block: int, digest: bytes) -> None:
        self.kept.append((digest, block))

    def release(self, blocks: list[int]) -> None:
        for block in blocks[::-1]:
            self.users[block] -= 1
            if self.users[block] == 0:
                self.queue.append(block)


@pytest.mark.parametrize("seed", range(20))
def test_pool_equals_the_slow_model(seed: int) -> None:
    rng = random.Random(seed)
    fast, slow = BlockPool(24), SlowPool(24)
    prompts = [[rng.randrange(3) for _ in range(rng.randrange(1, 40))] for _ in range(8)]
    running: list[list[int]] = []
    for _ in range(300):
        if running and rng.random() < 0.5:
            blocks = running.pop(rng.randrange(len(running)))
            fast.release(blocks)
            slow.release(blocks)
            continue
        prompt = rng.choice(prompts)
        digests = chain(ROOT, prompt, 4)
        limit = (len(prompt) - 1) // 4
        hit = fast.match(digests, limit)
        assert hit == slow.match(digests, limit)
        need = -(-len(prompt) // 4) - len(hit)
        if fast.free_after_use(hit) < need:
            continue
        fast.use(hit)
        slow.use(hit)
        fresh, lost = fast.allocate(need)
        assert (fresh, lost) == slow.allocate(need)
        blocks = hit + fresh
        for index in range(len(hit), len(digests)):
            fast.hold(blocks[index], digests[index])
            slow.hold(blocks[index], digests[index])
        running.append(blocks)
        assert fast.free == len(slow.queue)


def test_asking_for_too_much_changes_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(PoolExhaustedError):
        pool.allocate(4)
    assert pool.free == 3


def test_blocks_in_use_are_never_evicted() -> None:
    cache = KVCache(9, 4, ROOT)
    first = _fill(cache, list(range(16)))
    assert cache.open(list(range(100, 124)), [], None, 1) is None
    first.close()
    second = cache.open(list(range(100, 124)), [], None, 1)
    assert second is not None


def test_room_is_promised_for_the_output() -> None:
    cache = KVCache(5, 4, ROOT)
    running = cache.open([1, 2, 3], [], None, 10)
    assert running is not None
    assert cache.promised == 3
    assert cache.open([7] * 8, [], None, 1) is None
    assert cache.open([7], [], None, 1) is not None


def test_cached_tokens_never_cover_the_whole_prompt() -> None:
    cache = KVCache(32, 4, ROOT)
    prompt = list(range(12))
    _fill(cache, prompt).close()
    again = cache.open(prompt, chain(ROOT, prompt, 4), None, 1)
    assert again is not None
    assert again.cached_tokens == 8


def test_clearing_waits_until_nothing_runs() -> None:
    cache = KVCache(32, 4, ROOT)
    running = _fill(cache, list(range(12)))
    assert not cache.clear()
    running.close()
    cache.take_events()
    assert cache.clear()
    assert cache.take_events() == [{"type": "AllBlocksCleared"}]
    assert cache.pool.match(chain(ROOT, list(range(12)), 4), 9) == []


def _fill(cache: KVCache, prompt: list[int], output: tuple[int, ...] = (1,)) -> Any:
    sequence = cache.open(prompt, chain(ROOT, prompt, cache.block_size), None, len(output))
    assert sequence is not None
    sequence.reserve(len(prompt))
    sequence.compute(len(prompt))
    for count, token_id in enumerate(output):
        sequence.extend([token_id])
        sequence.reserve(len(prompt) + count)
        sequence.compute(len(prompt) + count)
    return sequence


def _recorded(captures: Path, name: str) -> list[list[dict[str, Any]]]:
    data = json.loads((captures / "kv" / f"{name}.json").read_text())
    return [message["payload"][1] for message in data["messages"] if message["payload"]]


def test_hashes_equal_the_recorded_ones(captures: Path) -> None:
    for name, salt in (("01_fresh_100tok", None), ("08_cache_salt", "tenant-a")):
        event = _recorded(captures, name)[0][0]
        digests = chain(ROOT, event["token_ids"], 32, salt)
        assert [event_hash(digest) for digest in digests] == event["block_hashes"]


def test_events_equal_the_recorded_ones(captures: Path) -> None:
    """Fresh, repeated, decode-filled and duplicate blocks; the recorded prompts' loose ends are unknown."""
    fresh = _recorded(captures, "01_fresh_100tok")[0]
    decoded = _recorded(captures, "05_decode_fills_blocks")
    cache = KVCache(512, 32, ROOT)
    prompt = fresh[0]["token_ids"]
    _fill(cache, [*prompt, 1, 2, 3, 4], (5,) * 4).close()
    assert cache.take_events() == fresh
    _fill(cache, [*prompt, 1, 2, 3, 4], (5,) * 4).close()
    assert cache.take_events() == []
    output = decoded[0][0]["token_ids"][8:] + decoded[1][0]["token_ids"] + [65] * 4
    _fill(cache, prompt[:32] + decoded[0][0]["token_ids"][:8], tuple(output)).close()
    assert cache.take_events() == decoded[0] + decoded[1]
    exact = _recorded(captures, "04_exact_multiple_96")[0]
    _fill(cache, prompt).close()
    assert cache.take_events() == exact


def test_evictions_equal_the_recorded_ones(captures: Path) -> None:
    """Three equal 96-token prompts, then others until all is gone. The pool's size is not on record."""
    batches = _recorded(captures, "34_duplicate_block_store_and_evict")
    cache = KVCache(72, 32, ROOT)
    first = batches[0][1]["token_ids"]
    for _ in range(3):
        _fill(cache, first).close()
    for batch in batches[3:6]:
        _fill(cache, batch[-1]["token_ids"] + [1] * 28, (1,)).close()
    cache.take_events()
    for batch in batches[6:]:
        _fill(cache, batch[-1]["token_ids"] + [1] * 28, (1,)).close()
        ours = cache.take_events()
        assert [event["type"] for event in ours] == [event["type"] for event in batch]
        assert ours[:-1] == batch[:-1]
        assert ours[-1]["block_hashes"] == batch[-1]["block_hashes"]
