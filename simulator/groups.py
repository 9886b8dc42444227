"""KV groups: the layers of a model that share block tables, and what each group keeps of a prefix.

A hybrid model has one group of full attention and others that keep little: a state group (Mamba, linear
attention) the state at a few block ends, a sliding-window group the last blocks before them.
"""

from __future__ import annotations

import re

import msgspec

FULL_KINDS = {"attention": "full_attention", "mla": "mla_attention"}
_OTHER = re.compile(r"(mamba|sliding_window:(\d+))(?:\*(\d+))?")


class Group(msgspec.Struct, frozen=True):
    """`kind` as KV events name it; `window` in tokens, of a sliding-window group only."""

    kind: str
    window: int | None = None

    @property
    def is_full(self) -> bool:
        """Full attention: every block counts and the hit is a contiguous prefix."""
        return self.kind in FULL_KINDS.values()

    @property
    def is_state(self) -> bool:
        """One state for a whole prefix instead of a block for each piece of it."""
        return self.kind == "mamba"

    def tail(self, block_size: int) -> int:
        """Blocks before a block end that a request needs to go on from there."""
        return 1 if self.window is None else -(-(self.window - 1) // block_size)

    def most_blocks(self, step: int, block_size: int) -> int:
        """Blocks that a sparse group ever needs for one sequence, whose steps have at most `step` tokens."""
        if self.window is None:
            return 2
        return -(-(self.window - 1 + step) // block_size) + 1


def parse_groups(text: str) -> tuple[Group, ...]:
    """Groups of a text such as `attention`, `mla+mamba*3` or `attention+sliding_window:1024`.

    They come out in the order of vLLM's group_idx: the sparse groups as written, the full one last.
    Raises ValueError.
    """
    first, *others = text.split("+")
    if first not in FULL_KINDS:
        raise ValueError(f"KV groups begin with one of {', '.join(FULL_KINDS)}, not {first!r}")
    groups: list[Group] = []
    for part in others:
        found = _OTHER.fullmatch(part)
        if found is None or "0" in found.groups():
            raise ValueError(f"{part!r} is no KV group; say mamba or sliding_window:TOKENS, *N for N of them")
        window = None if found[2] is None else int(found[2])
        groups += [Group("mamba" if window is None else "sliding_window", window)] * int(found[3] or 1)
    return (*groups, Group(FULL_KINDS[first]))
