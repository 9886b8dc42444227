"""`python -m loadtests.index.child NAME`: one index in a process of its own, told what to do by JSON lines.

Times are CPU times of the whole process, all threads. It runs in the peer's own environment.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from loadtests.index.material import Material
from loadtests.index.subjects import SUBJECTS, Subject

REPEATS = {1_024: 400, 8_192: 200, 65_536: 40, 1_048_576: 3}


class Order(msgspec.Struct):
    """What to do; for `workers` workers."""

    do: str
    workers: int
    tokens: int = 0
    """Of the prompts to look up."""
    blocks: int = 0
    """In all, to store."""
    per_event: int = 0


class Answer(msgspec.Struct):
    cpu_us: float = 0.0
    """For one look-up or one event."""
    bytes_per_entry: float = 0.0
    wrong: str = ""
    """What was found that should not have been."""


class Child:
    """The index at hand, and what it was loaded with."""

    def __init__(self, make: Callable[[int], Subject]) -> None:
        self._make = make
        self._subject: Subject | None = None
        self._material = Material(0)

    def obey(self, order: Order) -> Answer:
        answer: Answer = getattr(self, order.do)(order)
        return answer

    def load(self, order: Order) -> Answer:
        self._subject = None
        gc.unfreeze()
        gc.collect()
        self._subject = subject = self._make(order.workers)
        self._material = Material(order.workers)
        for worker, payload in self._material.load():
            subject.store(worker, payload)
        subject.settle()
        gc.collect()
        gc.freeze()
        return Answer()

    def find(self, order: Order) -> Answer:
        subject = self._subject
        assert subject is not None
        held = self._material.prompts[order.tokens]
        prompts = [subject.prompt(each.tokens) for each in held]
        for prompt, expected in zip(prompts, held, strict=True):
            if subject.depths(subject.find(prompt)) != expected.depths:
                return Answer(wrong=f"a prompt of {order.tokens} tokens")
        find = subject.find
        repeats = REPEATS[order.tokens] // len(prompts) or 1
        began = time.process_time()
        for _ in range(repeats):
            for prompt in prompts:
                find(prompt)
        return Answer(cpu_us=(time.process_time() - began) / (repeats * len(prompts)) * 1e6)

    def events(self, order: Order) -> Answer:
        """A new index; payloads are at hand, as a socket gives them."""
        material = Material(order.workers)
        events = list(material.conversations(order.blocks, order.per_event))
        subject = self._make(order.workers)
        store = subject.store
        gc.collect()
        began = time.process_time()
        for worker, payload in events:
            store(worker, payload)
        subject.settle()
        spent = time.process_time() - began
        return Answer(cpu_us=spent / len(events) * 1e6, wrong=_missing(subject, material))

    def memory(self, order: Order) -> Answer:
        """Resident bytes for each (worker, block) entry; best asked of a new process."""
        material = Material(order.workers)
        subject = self._make(order.workers)
        gc.collect()
        before = _resident()
        for worker, payload in material.conversations(order.blocks, order.per_event):
            subject.store(worker, payload)
        subject.settle()
        gc.collect()
        return Answer(
            bytes_per_entry=(_resident() - before) / order.blocks, wrong=_missing(subject, material)
        )


def _missing(subject: Subject, material: Material) -> str:
    tokens, expected = material.last
    found = subject.depths(subject.find(subject.prompt(tokens)))
    return "" if expected.items() <= found.items() else "the last conversation"


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def serve(make: Callable[[int], Subject]) -> None:
    """Obey each line of standard input."""
    child = Child(make)
    for line in sys.stdin.buffer:
        answer = child.obey(msgspec.json.decode(line, type=Order))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve(SUBJECTS[sys.argv[1]])
