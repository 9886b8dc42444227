"""Sequences in the KV pool, and the events that their blocks give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.groups import Group
from simulator.hashing import Digest, block_digest, event_hash
from simulator.matching import Hit, Matcher
from simulator.pool import BlockPool, Prefix
from simulator.tables import Held, StateTable, Table, WindowTable

Event = dict[str, Any]
"""One KV event as the wire has it, keys in vLLM's order."""

FULL_ATTENTION = (Group("full_attention"),)


class KVCache:
    """One rank's pool, and the events not yet published."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        root: Digest,
        groups: Sequence[Group] = FULL_ATTENTION,
        step_tokens: int = 8192,
    ) -> None:
        """`root` is the parent of all first blocks; `step_tokens` the most that one step computes."""
        self.pool = BlockPool(num_blocks, len(groups))
        self.block_size = block_size
        self.root = root
        self.groups = groups
        self.step_tokens = step_tokens
        self.has_states = any(group.is_state for group in groups)
        self._matcher = Matcher(self.pool, groups, block_size)
        self._fresh: set[Prefix] = set()
        self._events: list[Event] = []

    def new_step(self) -> None:
        """A scheduler step begins: the states of the last one are written."""
        self._fresh.clear()

    def take_events(self) -> list[Event]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def usage(self) -> float:
        """Share of the pool that sequences use, 0 to 1."""
        return 1.0 - self.pool.free / self.pool.usable

    def clear(self) -> bool:
        """Forget all prefixes; False while a sequence has blocks. The event waits for the next batch."""
        if not self.pool.clear():
            return False
        self._events.append({"type": "AllBlocksCleared"})
        return True

    def match(self, digests: Sequence[Digest], limit: int) -> Hit:
        """The longest prefix kept in all groups, at most `limit` blocks."""
        return self._matcher.match(digests, limit)

    def tables(self) -> list[Table]:
        """Empty tables, one a group."""
        return [self._table(index, group) for index, group in enumerate(self.groups)]

    def _table(self, index: int, group: Group) -> Table:
        if group.is_state:
            return StateTable(self.pool, index, group, self.block_size, self._fresh)
        kind = Table if group.is_full else WindowTable
        return kind(self.pool, index, group, self.block_size)

    def removed(self, lost: list[Prefix]) -> None:
        """Note evicted prefixes, one event each."""
        self._events += [
            {
                "type": "BlockRemoved",
                "block_hashes": [event_hash(digest)],
                "medium": "GPU",
                "group_idx": group,
            }
            for group, digest in lost
        ]

    def stored(
        self, index: int, held: Held, digests: Sequence[Digest], token_ids: Sequence[int], salt: str | None
    ) -> None:
        """Note blocks of a group that became full, of a sequence with these digests, tokens and salt.

        The event spans all of them and names those that are kept, of which there may be none.
        """
        group, size = self.groups[index], self.block_size
        event: Event = {
            "type": "BlockStored",
            "block_hashes": [event_hash(digests[place]) for place in held.kept],
            "parent_block_hash": event_hash(digests[held.first - 1]) if held.first else None,
            "token_ids": token_ids[held.first * size : held.full * size],
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        if held.kept:
            event["extra_keys"] = [[salt] if salt is not None and not place else None for place in held.kept]
        event |= {"group_idx": index, "kv_cache_spec_kind": group.kind}
        if group.window is not None:
            event["kv_cache_spec_sliding_window"] = group.window
        self._events.append(event)


class KVSequence:
    """One request's tokens and, while it runs, its blocks. Sizes are tokens unless said otherwise.

    A new one has no blocks: `look_up`, then `admit`. Each further step is `advance`. `free` takes it back to
    the beginning, with all its tokens known: so it can be admitted again after a preemption.
    """

    def __init__(
        self, cache: KVCache, token_ids: Sequence[int], digests: list[Digest], salt: str | None = None
    ) -> None:
        """`digests` are those of the prompt's full blocks; the list is taken over."""
        self.token_ids = list(token_ids)
        self.prompt_tokens = len(token_ids)
        self.computed = 0
        self.junction = 0
        """Where the tokens part from what another request left, 0 for nowhere."""
        self._cache = cache
        self._digests = digests
        self._salt = salt
        self._tables = cache.tables()
        self._quiet = 0
        """Tokens up to which steps change nothing: no block becomes full, none is taken or given back."""

    @property
    def tables(self) -> list[Table]:
        """The tables themselves, the full group's last."""
        return self._tables

    @property
    def block_ids(self) -> list[list[int]]:
        """Blocks of each group in order, NULL for those that a sparse group gave back."""
        return [list(table.blocks) for table in self._tables]

    @property
    def kept_tokens(self) -> int:
        """Depth of the deepest prefix that every group holds among this sequence's blocks."""
        return min(table.kept_blocks() for table in self._tables) * self._cache.block_size

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append output tokens; they are in the cache once a step has computed them."""
        self.token_ids += token_ids

    def look_up(self, tokens: int) -> Hit:
        """What the cache has of the first `tokens` tokens; at least the last of them is always computed."""
        size = self._cache.block_size
        self._hash_until(tokens // size)
        return self._cache.match(self._digests, (tokens - 1) // size)

    def admit(self, hit: Hit, new: int, *, hold: bool = True) -> bool:
        """Take over the hit and take blocks for `new` tokens after it; False, and nothing done, without room.

        There must be room for all the tokens, although only `new` of them get it now. Without `hold` nothing
        is kept for others yet: the tokens come from elsewhere, and only then can it be said that they are
        here.
        """
        upto = hit.depth * self._cache.block_size + new
        now = sum(table.wanted(upto, hit.blocks[table.index]) for table in self._tables)
        if max(now, self._wanted_in_all(hit)) > self._cache.pool.free:
            return False
        self.junction = hit.junction * self._cache.block_size
        for table, blocks in zip(self._tables, hit.blocks, strict=True):
            table.adopt(blocks)
        self.computed = hit.depth * self._cache.block_size
        self._grow(upto, hold=hold)
        return True

    def advance(self, new: int) -> bool:
        """Take blocks for `new` more tokens; False without room, although passed blocks are given back."""
        upto = self.computed + new
        if upto <= self._quiet:
            return True
        for table in self._tables:
            table.trim(self.computed)
        if sum(table.wanted(upto) for table in self._tables) > self._cache.pool.free:
            return False
        self._grow(upto)
        room_ends = -(-upto // self._cache.block_size) * self._cache.block_size
        self._quiet = min(room_ends - 1, *(table.next_trim() for table in self._tables))
        return True

    def free(self) -> None:
        """Give all blocks back; harmless the second time."""
        for table in self._tables:
            table.release()
        self.computed = self._quiet = 0

    def _wanted_in_all(self, hit: Hit) -> int:
        tokens, step = len(self.token_ids), self._cache.step_tokens
        return sum(table.wanted_in_all(tokens, hit.blocks[table.index], step) for table in self._tables)

    def _grow(self, upto: int, *, hold: bool = True) -> None:
        for table in self._tables:
            self._cache.removed(table.grow(upto))
        if hold:
            self.hold(upto)

    def hold(self, upto: int) -> None:
        """Keep the blocks that `upto` tokens fill for others, and say so."""
        size = self._cache.block_size
        self._hash_until(upto // size)
        boundaries = {(self.prompt_tokens - 1) // size, self.junction // size}
        for table in self._tables:
            held = table.hold(upto, self._digests, boundaries)
            if held is not None:
                self._cache.stored(table.index, held, self._digests, self.token_ids, self._salt)

    def _hash_until(self, full: int) -> None:
        size = self._cache.block_size
        for index in range(len(self._digests), full):
            parent = self._digests[-1] if self._digests else self._cache.root
            tokens = self.token_ids[index * size : (index + 1) * size]
            self._digests.append(block_digest(parent, tokens, None if index else self._salt))
