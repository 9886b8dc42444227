"""Fuzz the Kimi-K3 encoder and parser: hypothesis makes up chats and outputs until the time is over.

usage: uv run python -m scripts.fuzz_k3 [MINUTES]

The properties of the tests are run in turn, in rounds of fresh examples; the first that fails ends it with
the smallest example found. Prints how many examples each property has seen.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

MODULES = ("test_encoding_properties", "test_parser_properties", "test_grammar")
EXAMPLES = 1_000
"""In a round, unless the test says how many."""


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    end = time.monotonic() + minutes * 60
    # Before the tests are read: they take their settings then.
    settings.register_profile(
        "fuzz", max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("fuzz")
    seen: Counter[str] = Counter()
    properties = [_counted(test, seen) for name in MODULES for test in _properties(name)]
    while time.monotonic() < end:
        for run in properties:
            run()
    for name, examples in seen.items():
        print(f"{examples:>9,} {name.removeprefix('test_')}")
    print(f"{seen.total():>9,} examples in {minutes:g} minutes, no failure")


def _properties(module: str) -> list[Any]:
    members = vars(importlib.import_module(f"tests.parsers.kimi_k3.{module}"))
    return [test for test in members.values() if getattr(test, "is_hypothesis_test", False)]


def _counted(test: Any, seen: Counter[str]) -> Callable[[], None]:
    inner = test.hypothesis.inner_test

    @functools.wraps(inner)
    def count(*values: Any, **named: Any) -> None:
        seen[test.__name__] += 1
        inner(*values, **named)

    test.hypothesis.inner_test = count
    run: Callable[[], None] = test
    return run


if __name__ == "__main__":
    main()
