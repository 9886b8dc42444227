"""Hit rules: how deep a prompt's chain counts as cached, for many sources at once.

Sources are bits of a mask; a result is a list of (depth in blocks, mask of the sources at exactly that
depth), deepest first, without sources at depth 0.
"""

from __future__ import annotations

from typing import Protocol

Depth = tuple[int, int]

_READ_SINGLY = 64
"""Blocks at a prompt's start in which stops are looked for one by one: bisecting so few costs more.
So it does where there may be a stop in every few blocks."""


class Marks(Protocol):
    """A table: prefix hash -> mask of the sources that hold that block."""

    def get(self, key: int, default: int, /) -> int: ...


class Chain(Protocol):
    """A prompt's hashes, computed as far as they are asked for."""

    hashes: list[int]
    length: int
    """Blocks that it can have."""

    def grow(self) -> bool: ...

    def end(self) -> int: ...


def contiguous(chain: Chain, table: Marks, mask: int) -> list[Depth]:
    """Every block from the start: O(distinct depths x log blocks) probes of the table.

    Hashes at most twice as deep as the deepest source of `mask` goes. Engines free a prompt's blocks from its
    end, so who holds a block holds those before it; a hole, which only lost events can leave, is seen in the
    first blocks and wherever else a probe falls.
    """
    found: list[Depth] = []
    if not (mask and chain.grow()):
        return found
    hashes = chain.hashes
    depth = len(hashes)
    mask = _read(hashes, table, (0, depth), mask, found)
    holders = table.get
    while mask and chain.grow():
        still = mask & holders(hashes[-1], 0)
        if still != mask:
            within = (depth, len(hashes))
            stopping = mask ^ still
            few = len(hashes) <= _READ_SINGLY or len(hashes) - depth < 8 * stopping.bit_count()
            (_read if few else _bisect)(hashes, table, within, stopping, found)
            mask = still
        depth = len(hashes)
    if mask:
        found.append((depth, mask))
    found.sort(reverse=True)
    return found


def _read(hashes: list[int], table: Marks, within: tuple[int, int], mask: int, found: list[Depth]) -> int:
    """Where sources stop holding, block by block; answers those that go on to the end."""
    holders = table.get
    for position in range(*within):
        still = mask & holders(hashes[position], 0)
        if still != mask:
            if position:
                found.append((position, mask ^ still))
            mask = still
            if not mask:
                break
    return mask


def _bisect(hashes: list[int], table: Marks, within: tuple[int, int], mask: int, found: list[Depth]) -> int:
    """The same for sources that hold the block before the range, and not its last."""
    holders = table.get
    stack = [(*within, mask)]
    while stack:
        low, high, members = stack.pop()
        while high - low > 1:
            middle = (low + high) >> 1
            still = members & holders(hashes[middle - 1], 0)
            if still == members:
                low = middle
            else:
                if still:
                    stack.append((middle, high, still))
                    members ^= still
                high = middle
        found.append((low, members))
    return 0


def ending_in_run(hashes: list[int], depths: list[Depth], table: Marks, span: int) -> list[Depth]:
    """The deepest end, at most at `depths`, of `span` blocks in a row that the source holds in `table`.

    A run that reaches back to the prompt's start counts at any length. With a span of 1 this is a recurrent
    state at exactly that block.
    """
    arriving = dict(depths)
    found: list[Depth] = []
    runs: list[Depth] = []
    idle = 0
    holders = table.get
    for depth in range(depths[0][0] if depths else 0, 0, -1):
        idle |= arriving.pop(depth, 0)
        held = holders(hashes[depth - 1], 0)
        if runs:
            runs, idle = _extend(runs, held, idle, depth, span, found)
        if started := idle & held:
            idle ^= started
            (runs if span > 1 else found).append((depth, started))
        if not (idle or runs or arriving):
            break
    return _merged(found + runs)


def _extend(
    runs: list[Depth], held: int, idle: int, depth: int, span: int, found: list[Depth]
) -> tuple[list[Depth], int]:
    """Carry each run (its end, its sources) one block towards the start; who breaks off is idle again."""
    going: list[Depth] = []
    for end, members in runs:
        still = members & held
        idle |= members ^ still
        if still:
            (found if end - depth + 1 >= span else going).append((end, still))
    return going, idle


def _merged(found: list[Depth]) -> list[Depth]:
    by_depth: dict[int, int] = {}
    for depth, members in found:
        by_depth[depth] = by_depth.get(depth, 0) | members
    return sorted(by_depth.items(), reverse=True)


def satisfying_all(hashes: list[int], depths: list[Depth], classes: list[tuple[Marks, int]]) -> list[Depth]:
    """The deepest common end over several (table, span) classes."""
    if len(classes) == 1:
        return ending_in_run(hashes, depths, *classes[0])
    found: list[Depth] = []
    for depth, members in depths:
        while members:
            bit = members & -members
            members ^= bit
            end = _common_end(hashes, depth, bit, classes)
            if end:
                found.append((end, bit))
    return _merged(found)


def ending_in_part(
    units: list[int], depths: list[Depth], mask: int, stride: int, attention: Marks, states: list[Marks]
) -> list[Depth]:
    """The deepest end, in units, where blocks of `stride` units may be held in part.

    Attention holds whole blocks down to `depths` (in blocks; the rest of `mask` none), and the next one up to
    a unit whose own hash it has. Each of `states` must hold the end. `units` are the prompt's hashes.
    """
    found: list[Depth] = []
    arriving: dict[int, int] = {}
    for depth, members in depths:
        ceiling = min((depth + 1) * stride - 1, len(units))
        arriving[ceiling] = arriving.get(ceiling, 0) | members
        mask &= ~members
    first = min(stride - 1, len(units))
    arriving[first] = arriving.get(first, 0) | mask
    idle = 0
    for end in range(max(arriving), 0, -1):
        idle |= arriving.pop(end, 0)
        prefix = units[end - 1]
        held = idle
        if end % stride:
            held &= attention.get(prefix, 0)
        for table in states:
            held &= table.get(prefix, 0)
        if held:
            found.append((end, held))
            idle ^= held
        if not (idle or arriving):
            break
    return found


def _common_end(hashes: list[int], depth: int, bit: int, classes: list[tuple[Marks, int]]) -> int:
    while depth:
        before = depth
        for table, span in classes:
            ends = ending_in_run(hashes, [(depth, bit)], table, span)
            depth = ends[0][0] if ends else 0
        if depth == before:
            break
    return depth
