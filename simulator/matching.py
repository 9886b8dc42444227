"""The longest prefix that a pool holds for a request: the hybrid rule.

A hit ends at the deepest block up to which the full group has every block and from which every sparse group
can go on. Where the full group alone would have gone further, the request's path parts from another's: a
junction, at which the sparse groups will keep what they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.groups import Group
from simulator.hashing import Digest
from simulator.pool import NULL, BlockPool

Row = list[int]
"""A block of each of several like groups, for one place of the prompt."""


class Hit(NamedTuple):
    """What of a prompt is there already."""

    blocks: list[list[int]]
    """For each group a table as deep as the hit, NULL where the group needs no block."""
    depth: int
    """In blocks."""
    junction: int
    """Depth in blocks of a prefix that the full group holds beyond the hit; 0 for none."""


class Matcher:
    """Looks prompts up in one pool."""

    def __init__(self, pool: BlockPool, groups: Sequence[Group], block_size: int) -> None:
        self._pool = pool
        self._count = len(groups)
        self._block_size = block_size
        kinds = sorted(dict.fromkeys(groups), key=lambda group: not group.is_full)
        self._kinds = [(kind, [i for i, group in enumerate(groups) if group == kind]) for kind in kinds]

    def match(self, digests: Sequence[Digest], limit: int) -> Hit:
        """The longest hit of at most `limit` blocks."""
        full = self._contiguous(self._kinds[0][1], digests[:limit])
        depth = len(full)
        sparse: list[list[Row]] = []
        while True:
            before = depth
            sparse = []
            for kind, indices in self._kinds[1:]:
                sparse.append(self._sparse(kind, indices, digests[:depth]))
                depth = len(sparse[-1])
            # One sparse kind settles at once; several may have to follow each other down.
            if depth == before or len(sparse) < 2:
                break
        blocks: list[list[int]] = [[] for _ in range(self._count)]
        for (_, indices), rows in zip(self._kinds, [full[:depth], *sparse], strict=True):
            for place, index in enumerate(indices):
                blocks[index] = [row[place] for row in rows]
        return Hit(blocks, depth, len(full) if len(full) > depth else 0)

    def _contiguous(self, indices: Sequence[int], digests: Sequence[Digest]) -> list[Row]:
        rows = []
        for digest in digests:
            row = self._pool.find(indices, digest)
            if row is None:
                break
            rows.append(row)
        return rows

    def _sparse(self, kind: Group, indices: Sequence[int], digests: Sequence[Digest]) -> list[Row]:
        """Rows up to the deepest place with enough blocks before it; at the start fewer are enough."""
        nothing = [NULL] * len(indices)
        rows: list[Row] = [nothing] * len(digests)
        run, needed = 0, kind.tail(self._block_size)
        for place in range(len(digests) - 1, -1, -1):
            row = self._pool.find(indices, digests[place])
            if row is None:
                run = 0
                continue
            rows[place] = row
            run += 1
            if run == needed:
                return [nothing] * place + rows[place : place + run]
        return rows[:run]
