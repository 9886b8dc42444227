"""Which prefill and decode workers can hand over to each other, and why others cannot. Pure.

A pair that does not fit fails every transfer, or, worse, reads blocks that mean something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from gateway.config import LinkClass
from gateway.handoff.links import at_least, link_class

REVISION, SPECULATION = "revision", "speculation"
"""Labels for what vLLM does not tell: the model's revision, the speculative decoding."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What of a worker decides whom it can hand over to. None and empty are unknown, and fit."""

    engine: str
    version: str | None = None
    block_size: int | None = None
    """Tokens in a block."""
    layout: Mapping[str, str] = {}
    """Engine settings that say how blocks are laid out."""
    speculation: str = ""
    compatibility: str | None = None
    """vLLM's hash of all that its connector compares."""
    labels: Mapping[str, str] = {}


def obstacle(prefill: Traits, decode: Traits, required: LinkClass | None = None) -> str | None:
    """Why the two cannot be a pair; None when they can, as far as is known."""
    for what, ours, theirs in _compared(prefill, decode):
        if ours and theirs and ours != theirs:
            return f"{what}: {ours} on prefill, {theirs} on decode"
    link = link_class(prefill.labels, decode.labels)
    if required is not None and not at_least(link, required):
        return f"link: {link}, and {required} is required"
    return None


def _compared(prefill: Traits, decode: Traits) -> Iterator[tuple[str, object, object]]:
    yield "engine", prefill.engine, decode.engine
    yield "version", prefill.version, decode.version
    yield "revision", prefill.labels.get(REVISION), decode.labels.get(REVISION)
    yield "block size", prefill.block_size, decode.block_size
    for name in prefill.layout.keys() & decode.layout.keys():
        yield name, prefill.layout[name], decode.layout[name]
    yield "speculative decoding", _speculation(prefill), _speculation(decode)
    yield "compatibility hash", prefill.compatibility, decode.compatibility


def _speculation(traits: Traits) -> str:
    """Without speculation where the engine tells of it, so that none differs from some."""
    if traits.engine == "sglang":
        return traits.speculation or "none"
    return traits.labels.get(SPECULATION, "")
