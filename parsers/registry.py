"""The model formats by name. Adding one is a folder of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable

from parsers.base import ModelFormat

FORMATS: dict[str, Callable[[], ModelFormat]] = {}

DEFAULT_FORMAT = "kimi_k3"


def get_format(name: str) -> ModelFormat:
    """The format of that name. Raises KeyError."""
    return FORMATS[name]()
