"""Logging for the service. Prompts, token ids and keys are never logged."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from time import monotonic

BURST = 20
"""Warnings of one kind that are written at once; after them one a second."""


def configure_logging(level: str) -> None:
    """One line a record on standard error."""
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(Limit())


class Limit(logging.Filter):
    """Keeps a kind of warning that comes with every request from filling the log.

    What is left out is counted, and said with the next line of that kind. A kind is a line of code.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key = record.pathname, record.lineno
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind()
        now = self._clock()
        kind.left = min(BURST, kind.left + now - kind.since)
        kind.since = now
        if kind.left < 1:
            kind.left_out += 1
            return False
        kind.left -= 1
        if kind.left_out:
            record.msg = f"{record.getMessage()} (and {kind.left_out} more like it)"
            record.args = None
            kind.left_out = 0
        return True


class _Kind:
    __slots__ = ("left", "left_out", "since")

    def __init__(self) -> None:
        self.left, self.left_out, self.since = float(BURST), 0, 0.0
