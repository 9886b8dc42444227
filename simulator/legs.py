"""Prefill and decode legs in one engine: which blocks a peer may read, and reading a peer's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from simulator.handoff import Handoff
from simulator.kv.arena import Arena
from simulator.kv.context import Context
from simulator.kv.parameters import BlockGroups, RemoteBlocks
from simulator.kv.transport import TransferError
from simulator.pool import NULL
from simulator.scheduler import Job
from simulator.tables import Table

LONG_CHECK = 65_536
"""From here on what a peer gave is compared in a thread, so that other streams keep their pace."""


def readable(tables: Sequence[Table], tokens: int) -> BlockGroups:
    """For each group the blocks that somebody needs who goes on after `tokens` tokens."""
    return [_needed(table, 0, tokens) for table in tables]


def pair(tables: Sequence[Table], remote: BlockGroups, cached: int, upto: int) -> tuple[list[int], list[int]]:
    """Own blocks for the tokens from `cached` to `upto`, and the peer's for each of them.

    Lists of unlike length match at their ends (vLLM 0.32). Raises TransferError: the peer offers too few.
    """
    if len(remote) != len(tables):
        raise TransferError(f"blocks of {len(remote)} groups offered, this model has {len(tables)}")
    local: list[int] = []
    theirs: list[int] = []
    for table, offered in zip(tables, remote, strict=True):
        wanted = _needed(table, cached, upto)
        if len(wanted) > len(offered):
            raise TransferError(f"{len(wanted)} blocks wanted, {len(offered)} offered")
        local += wanted
        theirs += offered[len(offered) - len(wanted) :]
    return local, theirs


async def fetch(job: Job, remote: RemoteBlocks, handoff: Handoff, arena: Arena) -> None:
    """Read what the peer has of the job's prompt. Raises TransferError; the job has no context then."""
    sequence, upto = job.sequence, job.remote_tokens
    context = Context(arena, sequence.tables, sequence.computed)
    if upto <= sequence.computed:
        await handoff.fetch(remote, [], [])
    else:
        await handoff.fetch(remote, *pair(sequence.tables, remote.blocks, sequence.computed, upto))
        if upto >= LONG_CHECK:
            await asyncio.to_thread(context.received, sequence.token_ids, upto)
        else:
            context.received(sequence.token_ids, upto)
    job.context = context


def _needed(table: Table, start: int, stop: int) -> list[int]:
    """The group's blocks that hold the tokens from `start` to `stop`, or the state after them."""
    if stop <= start:
        return []
    size = table.block_size
    last = (stop - 1) // size
    first = start // size
    if table.group.is_state:
        first = last
    elif table.group.window is not None:
        first = max(first, (stop - table.group.window + 1) // size)
    return [block for block in table.blocks[first : last + 1] if block != NULL]
