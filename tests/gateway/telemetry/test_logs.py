"""The log stays readable when a warning comes with every request."""

from __future__ import annotations

import logging

from gateway.telemetry.logs import BURST, Limit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def record(line: int = 1, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("x", level, "file.py", line, "request %s failed", ("r1",), None)


def test_a_burst_is_written_and_then_one_a_second_with_the_number_left_out() -> None:
    clock = Clock()
    limit = Limit(clock)
    assert [limit.filter(record()) for _ in range(BURST + 5)] == [True] * BURST + [False] * 5
    clock.now += 1
    last = record()
    assert limit.filter(last)
    assert last.getMessage() == "request r1 failed (and 5 more like it)"
    assert not limit.filter(record())


def test_another_line_of_code_is_another_kind() -> None:
    limit = Limit(Clock())
    for _ in range(BURST + 1):
        limit.filter(record())
    assert limit.filter(record(line=2))


def test_what_is_no_warning_is_never_left_out() -> None:
    limit = Limit(Clock())
    assert all(limit.filter(record(level=logging.INFO)) for _ in range(10 * BURST))
