"""`python -m loadtests.index.fuzz NAME [SEEDS]`: an index against brute force, in the peer's environment too.

Stores from anywhere in a prompt, blocks announced again, evictions tail first, each worker at its own depth.
Ours also with what Dynamo's tree does not know: a hash that was announced twice needs two removals, as with
real engines, and a hit may need the state of a second KV group.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from random import Random

import numpy as np

from loadtests.index.material import BLOCK, removed, stored
from loadtests.index.subjects import SUBJECTS, Subject

WORKERS = 40
DEPTH = 24
STEPS = 400
STATE_GROUP = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}


class Fuzz:
    """One sequence of events, by its seed."""

    def __init__(self, make: Callable[[int], Subject], seed: int, *, counted: bool, states: bool) -> None:
        self._random = Random(seed)
        self._counted = counted
        self._with_states = states
        self._subject = make(WORKERS)
        self._held: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(WORKERS)]
        self._states: list[set[tuple[int, ...]]] = [set() for _ in range(WORKERS)]
        self._hashes: dict[tuple[int, ...], int] = {}
        self._bases = [self._words(DEPTH) for _ in range(5)]

    def run(self) -> str:
        """What was found wrong first; empty when nothing was."""
        for step in range(STEPS):
            worker = self._random.randrange(WORKERS)
            if self._random.random() < 0.6:
                self._store(worker)
            elif self._held[worker]:
                self._evict(worker)
            if step % 10 == 0 and (wrong := self._compare()):
                return f"step {step}: {wrong}"
        return ""

    def _words(self, blocks: int) -> list[int]:
        """A block is one of a few, so that prompts meet and part: here by its number."""
        return [self._random.randrange(6) for _ in range(blocks)]

    def _prompt(self) -> list[int]:
        words = list(self._random.choice(self._bases))
        kept = self._random.randrange(DEPTH + 1)
        return words if self._random.random() < 0.5 else words[:kept] + self._words(DEPTH - kept)

    def _hash(self, words: list[int]) -> int:
        return self._hashes.setdefault(tuple(words), self._random.getrandbits(62) + 1)

    def _store(self, worker: int) -> None:
        words = self._prompt()[: self._random.randint(1, DEPTH)]
        held = self._held[worker]
        known = 0
        while known < len(words) and held[tuple(words[: known + 1])]:
            known += 1
        start = self._random.randint(0, known) if known == len(words) else known
        chain = [words[: end + 1] for end in range(start, len(words))]
        if not chain:
            return
        parent = self._hash(words[:start]) if start else None
        ids = tokens(words[start:])
        self._subject.store(worker, stored([self._hash(w) for w in chain], parent, ids.tolist()))
        for each in chain:
            held[tuple(each)] += 1
        if self._with_states:
            ends = [each for each in chain if self._random.random() < 0.3]
            self._subject.store(
                worker, stored([self._hash(w) for w in ends], parent, ids.tolist(), **STATE_GROUP)
            )
            self._states[worker].update(map(tuple, ends))

    def _evict(self, worker: int) -> None:
        """A block that no held block goes on from, one copy of it; or a state."""
        held, states = self._held[worker], self._states[worker]
        if states and self._random.random() < 0.3:
            gone = self._random.choice(sorted(states))
            self._subject.store(worker, removed([self._hash(list(gone))], group_idx=1))
            states.discard(gone)
            return
        parents = {words[:-1] for words in held}
        gone = self._random.choice(sorted(words for words in held if words not in parents))
        self._subject.store(worker, removed([self._hash(list(gone))]))
        held[gone] -= 1 if self._counted else held[gone]
        if not held[gone]:
            del held[gone]

    def _compare(self) -> str:
        self._subject.settle()
        words = self._prompt()
        prompt = self._subject.prompt(np.append(tokens(words), np.uint32(1)))
        found = self._subject.depths(self._subject.find(prompt))
        expected = {w: depth for w in range(WORKERS) if (depth := self._usable(w, words))}
        return "" if found == expected else f"{found} instead of {expected}"

    def _usable(self, worker: int, words: list[int]) -> int:
        usable = 0
        for depth in range(1, len(words) + 1):
            if not self._held[worker][tuple(words[:depth])]:
                break
            if not self._with_states or tuple(words[:depth]) in self._states[worker]:
                usable = depth
        return usable


def tokens(words: list[int]) -> np.typing.NDArray[np.uint32]:
    """Each word as a whole block."""
    return np.repeat(np.array(words, dtype=np.uint32), BLOCK) * 1000 + np.tile(
        np.arange(BLOCK, dtype=np.uint32), len(words)
    )


def main() -> int:
    name, seeds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6
    ours = name == "kvgateway"
    wrong = 0
    for states in (False, True) if ours else (False,):
        for seed in range(seeds):
            if found := Fuzz(SUBJECTS[name], seed, counted=ours, states=states).run():
                wrong += 1
                print(f"seed {seed}, states {states}: {found}")
    print(f"{name}: {wrong} sequences wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
