"""What the tour's steps share."""

from __future__ import annotations

from gateway.demo.client import Json


class StepFailedError(Exception):
    """A step did not see what it should; the message says what it saw."""


def require(true: bool, otherwise: str) -> None:
    """Raises StepFailedError."""
    if not true:
        raise StepFailedError(otherwise)


def user(text: str) -> list[Json]:
    """A chat of one message."""
    return [{"role": "user", "content": text}]
