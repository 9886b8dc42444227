"""The pool against a slow model that keeps everything in plain lists."""

from __future__ import annotations

import random

import pytest

from simulator.groups import Group
from simulator.hashing import Digest, chain, root_digest
from simulator.matching import Matcher
from simulator.pool import NULL, BlockPool, PoolExhaustedError

ROOT = root_digest("0")
Prefix = tuple[int, Digest]


class SlowPool:
    """The same rules, told once more: a list of (prefix, block) and the queue of what goes next."""

    def __init__(self, num_blocks: int) -> None:
        self.queue: list[int] = list(range(1, num_blocks))
        self.users: dict[int, int] = {}
        self.kept: list[tuple[Prefix, int]] = []

    def match(self, group: int, digests: list[Digest]) -> list[int]:
        found: list[int] = []
        for digest in digests:
            blocks = [block for kept, block in self.kept if kept == (group, digest)]
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def use(self, blocks: list[int]) -> None:
        for block in blocks:
            self.users[block] = self.users.get(block, 0) + 1
            self.queue = [other for other in self.queue if other != block]

    def allocate(self, count: int) -> tuple[list[int], list[Prefix]]:
        blocks, self.queue = self.queue[:count], self.queue[count:]
        lost = []
        for block in blocks:
            self.users[block] = 1
            lost += [prefix for prefix, kept in self.kept if kept == block]
            self.kept = [entry for entry in self.kept if entry[1] != block]
        return blocks, lost

    def hold(self, block: int, group: int, digest: Digest) -> None:
        self.kept.append(((group, digest), block))

    def release(self, blocks: list[int]) -> None:
        gone = []
        for block in blocks:
            self.users[block] -= 1
            if self.users[block] == 0:
                gone.append(block)
        holding = {block for _, block in self.kept}
        self.queue = [block for block in gone if block not in holding] + self.queue
        self.queue += [block for block in gone if block in holding]


@pytest.mark.parametrize("seed", range(20))
def test_pool_equals_the_slow_model(seed: int) -> None:
    rng = random.Random(seed)
    fast, slow = BlockPool(24, 2), SlowPool(24)
    matcher = Matcher(fast, (Group("full_attention"),), 4)
    prompts = [[rng.randrange(3) for _ in range(rng.randrange(1, 40))] for _ in range(8)]
    running: list[list[int]] = []
    for _ in range(300):
        if running and rng.random() < 0.5:
            blocks = running.pop(rng.randrange(len(running)))[::-1]
            fast.release(blocks)
            slow.release(blocks)
            continue
        prompt, group = rng.choice(prompts), rng.randrange(2)
        digests = chain(ROOT, prompt, 4)
        hit = slow.match(group, digests[: (len(prompt) - 1) // 4])
        if group == 0:
            assert matcher.match(digests, (len(prompt) - 1) // 4).blocks[0] == hit
        need = -(-len(prompt) // 4) - len(hit)
        if fast.free - fast.unused(hit) < need:
            continue
        fast.use(hit)
        slow.use(hit)
        fresh, lost = fast.allocate(need)
        assert (fresh, lost) == slow.allocate(need)
        blocks = hit + fresh
        for index in range(len(hit), len(digests)):
            fast.hold(blocks[index], group, digests[index])
            slow.hold(blocks[index], group, digests[index])
        running.append(blocks)
        assert fast.free == len(slow.queue)


def test_asking_for_too_much_changes_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(PoolExhaustedError):
        pool.allocate(4)
    assert pool.free == 3


def test_what_holds_no_prefix_goes_first() -> None:
    pool = BlockPool(6)
    blocks, _ = pool.allocate(4)
    pool.hold(blocks[0], 0, b"a")
    pool.hold(blocks[1], 0, b"b")
    pool.release(blocks[::-1])
    assert pool.allocate(5) == ([4, 3, 5, 2, 1], [(0, b"b"), (0, b"a")])


def test_one_hash_is_removed_as_often_as_it_was_stored() -> None:
    pool = BlockPool(4)
    for block in pool.allocate(3)[0]:
        pool.hold(block, 0, b"a")
    assert pool.find([0], b"a") == [1]
    pool.release([1, 2, 3])
    for left in (2, 1, 0):
        assert pool.allocate(1)[1] == [(0, b"a")]
        assert (pool.find([0], b"a") is not None) == (left > 0)


def test_a_prefix_belongs_to_its_group() -> None:
    pool = BlockPool(4, 2)
    pool.hold(pool.allocate(1)[0][0], 1, b"a")
    assert pool.find([1], b"a") == [1]
    assert pool.find([0], b"a") is None
    assert pool.find([0, 1], b"a") is None


def test_the_null_block_is_passed_over() -> None:
    pool = BlockPool(4)
    pool.use([NULL])
    pool.release([NULL, NULL])
    assert pool.unused([NULL, 1]) == 1
    assert pool.free == 3


def test_clearing_waits_until_nothing_is_used() -> None:
    pool = BlockPool(4)
    blocks, _ = pool.allocate(1)
    pool.hold(blocks[0], 0, b"a")
    assert not pool.clear()
    pool.release(blocks)
    assert pool.clear()
    assert pool.find([0], b"a") is None
    assert pool.allocate(3)[1] == []
