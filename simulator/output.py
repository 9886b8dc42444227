"""What a request will produce, decided before it starts: ids, the reason it ends, the pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec


class Script(msgspec.Struct, frozen=True):
    """What a request asks the worker to do, in vLLM's extra arguments (`vllm_xargs`, `extra_args`)."""

    script_ids: list[int | list[int]] | None = None
    """Exactly these output ids, up to the usual limits and stops; or such a list for each choice."""
    tokens_per_step: int | None = None
    delay_ms: float | None = None
    """Milliseconds before each step, in place of the timing model."""

    def ids(self, choice: int) -> list[int] | None:
        """What a choice is to say; choices for which there is no list say nothing."""
        if self.script_ids is None:
            return None
        lists = [entry for entry in self.script_ids if isinstance(entry, list)]
        if lists:
            return lists[choice] if choice < len(lists) else []
        return [entry for entry in self.script_ids if isinstance(entry, int)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What ends an output."""

    max_tokens: int
    end_ids: frozenset[int]
    """The model's own end; not looked at with `ignore_eos`."""
    eos_id: int | None = None
    """The one of them that is no stop reason."""
    stop_token_ids: frozenset[int] = frozenset()
    stop: Sequence[str] = ()
    min_tokens: int = 0
    ignore_eos: bool = False


class Plan(NamedTuple):
    """A whole output. A stop token is part of `ids`."""

    ids: list[int]
    finish_reason: str
    stop_reason: int | str | None


def plan_output(
    ids: Sequence[int], limits: Limits, filler: Sequence[int], text_of: Callable[[int], bytes]
) -> Plan:
    """Cut `ids` by the limits; with `ignore_eos` go on with `filler` until max_tokens.

    `text_of` gives a token's bytes, for stop strings. An output that simply runs out ends with "stop".
    """
    wanted = list(ids[: limits.max_tokens])
    if limits.ignore_eos and filler and len(wanted) < limits.max_tokens:
        missing = limits.max_tokens - len(wanted)
        wanted += (list(filler) * (missing // len(filler) + 1))[:missing]
    end, reason = _first_stop(wanted, limits, text_of)
    if end is not None:
        return Plan(wanted[:end], "stop", reason)
    reached = len(wanted) >= limits.max_tokens
    return Plan(wanted, "length" if reached else "stop", None)


def _first_stop(
    ids: list[int], limits: Limits, text_of: Callable[[int], bytes]
) -> tuple[int | None, int | str | None]:
    """Length up to and including the first stop, and what stopped it."""
    stop_ids = limits.stop_token_ids | (frozenset() if limits.ignore_eos else limits.end_ids)
    strings = [text.encode() for text in limits.stop]
    window = max(map(len, strings), default=0)
    tail = b""
    for count, token_id in enumerate(ids, 1):
        piece = text_of(token_id) if strings else b""
        tail = (tail + piece)[-(window + len(piece)) :]
        if count <= limits.min_tokens:
            continue
        if token_id in stop_ids:
            return count, None if token_id == limits.eos_id else token_id
        found = [(at, text) for text in strings if (at := tail.find(text)) >= 0]
        if found:
            return count, min(found)[1].decode()
    return None, None
