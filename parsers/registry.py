"""The model formats by name. Adding one is a folder of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable

from parsers.base import ModelFormat
from parsers.kimi_k3.format import KimiK3Format
from parsers.plain import END_ID, PlainFormat

FORMATS: dict[str, Callable[[], ModelFormat]] = {
    "kimi_k3": KimiK3Format,
    "kimi_k3_rev_a": lambda: KimiK3Format("kimi_k3_rev_a", "a"),
    "plain": lambda: PlainFormat((END_ID,)),
}

DEFAULT_FORMAT = "kimi_k3"

DEFAULT_PROFILE = "default"
STRICT_PROFILE = "kimi-strict"
"""The contract of the default format's vendor to the letter."""
PROFILES = (DEFAULT_PROFILE, STRICT_PROFILE)


def get_format(name: str) -> ModelFormat:
    """The format of that name. Raises KeyError."""
    return FORMATS[name]()
