"""The index against brute force: stores, repeats, removals, clears and restarts of several hybrid sources."""

from __future__ import annotations

from collections import Counter, deque
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.events import AllBlocksCleared, BlockRemoved, GroupKind
from router.hashing import PrefixHasher
from router.index import PrefixIndex
from router.messages import WorkerKey
from router.recipes import RECIPES, EngineChain, Layout
from tests.router.wire import stored, tokens

BLOCK = 2
LAYOUTS: list[list[tuple[GroupKind, int]]] = [
    [(GroupKind.ATTENTION, 0)],
    [(GroupKind.STATE, 0), (GroupKind.ATTENTION, 0)],
    [(GroupKind.STATE, 0), (GroupKind.ATTENTION, 0), (GroupKind.STATE, 0)],
    [(GroupKind.ATTENTION, 0), (GroupKind.ATTENTION, 0)],
    [(GroupKind.ATTENTION, 0), (GroupKind.STATE, 5)],
    [(GroupKind.STATE, 5), (GroupKind.STATE, 0), (GroupKind.ATTENTION, 0), (GroupKind.STATE, 5)],
    [(GroupKind.STATE, 3), (GroupKind.STATE, 7), (GroupKind.ATTENTION, 0)],
]
TREE = [[1] * 15, [1] * 7 + [2] * 8, [2] * 15]
prompts = st.builds(lambda ids, length: ids[:length], st.sampled_from(TREE), st.integers(1, 15))
salts = st.sampled_from([None, None, "s"])
numbers = st.integers(0, 2)
Prefix = tuple[str | None, tuple[int, ...]]


def engine_hash(prefix: Prefix) -> int:
    return hash(("engine", prefix)) & 0xFFFF_FFFF_FFFF_FFFF


class Model:
    """What one source holds, as counts of prefixes by group."""

    def __init__(self, layout: list[tuple[GroupKind, int]]) -> None:
        self.layout = layout
        self.held: list[Counter[Prefix]] = [Counter() for _ in layout]

    def groups(self, kind: GroupKind) -> list[int]:
        return [group for group, (own, _) in enumerate(self.layout) if own is kind]

    def attends(self, prefix: Prefix) -> bool:
        return all(self.held[group][prefix] for group in self.groups(GroupKind.ATTENTION))

    def ends(self, ids: list[int], salt: str | None, depth: int) -> bool:
        """Whether every state group allows a hit of `depth` blocks."""
        for group in self.groups(GroupKind.STATE):
            span = max(1, -(-(self.layout[group][1] - 1) // BLOCK))
            for end in range(depth, max(0, depth - span), -1):
                if not self.held[group][salt, tuple(ids[: end * BLOCK])]:
                    return False
        return True

    def usable(self, ids: list[int], salt: str | None) -> int:
        best = 0
        for depth in range(1, (len(ids) - 1) // BLOCK + 1):
            if not self.attends((salt, tuple(ids[: depth * BLOCK]))):
                break
            if self.ends(ids, salt, depth):
                best = depth
        return best * BLOCK


class IndexMachine(RuleBasedStateMachine):
    def engine_hash(self, prefix: Prefix) -> int:
        return engine_hash(prefix)

    @initialize(layouts=st.lists(st.sampled_from(LAYOUTS), min_size=3, max_size=3))
    def begin(self, layouts: list[list[tuple[GroupKind, int]]]) -> None:
        self.index = PrefixIndex(PrefixHasher(3))
        self.models = [Model(layout) for layout in layouts]
        self.sources = [self.index.open(WorkerKey("w", rank)) for rank in range(3)]
        self.asked: deque[tuple[list[int], str | None]] = deque(maxlen=5)
        for number in range(3):
            self.announce_groups(number)

    def announce_groups(self, number: int) -> None:
        """Events without blocks, as engines send them: they tell which groups there are."""
        for group, (kind, window) in enumerate(self.models[number].layout):
            event = stored([], group=group, kind=kind, window=window)
            self.index.apply(self.sources[number], [event])

    @rule(number=numbers, ids=prompts, salt=salts, data=st.data())
    def store(self, number: int, ids: list[int], salt: str | None, data: st.DataObject) -> None:
        """A chain goes to all attention groups, its ends to state groups, in the order of the groups."""
        model = self.models[number]
        self.asked.append((ids, salt))
        depth = len(ids) // BLOCK
        prefixes: list[Prefix] = [(salt, tuple(ids[: end * BLOCK])) for end in range(1, depth + 1)]
        known = 0
        while known < depth and all(
            model.held[group][prefixes[known]] for group in model.groups(GroupKind.ATTENTION)
        ):
            known += 1
        start = data.draw(st.integers(0, known))
        for group, (kind, window) in enumerate(model.layout):
            if kind is GroupKind.ATTENTION:
                listed = prefixes[start:]
                ranged = ids[start * BLOCK : depth * BLOCK]
            else:
                listed = data.draw(st.lists(st.sampled_from(prefixes), unique=True)) if prefixes else []
                ranged = []
            event = stored(
                [self.engine_hash(prefix) for prefix in listed],
                ranged,
                parent=self.engine_hash(prefixes[start - 1]) if start else None,
                group=group,
                kind=kind,
                window=window,
                cache_salt=None if start else salt,
            )
            self.index.apply(self.sources[number], [event])
            model.held[group].update(listed)

    @rule(number=numbers, ids=prompts)
    def store_on_an_unknown_parent(self, number: int, ids: list[int]) -> None:
        blocks = len(ids) // BLOCK
        prefixes: list[Prefix] = [(None, (9, *ids[:end])) for end in range(blocks)]
        for group in self.models[number].groups(GroupKind.ATTENTION):
            orphans = stored(
                [self.engine_hash(prefix) for prefix in prefixes],
                ids[: blocks * BLOCK],
                parent=12345,
                group=group,
            )
            self.index.apply(self.sources[number], [orphans])
            self.models[number].held[group].update(prefixes)

    @rule(number=numbers, data=st.data())
    def remove(self, number: int, data: st.DataObject) -> None:
        model = self.models[number]
        group = data.draw(st.integers(0, len(model.layout) - 1))
        held = sorted(model.held[group].elements(), key=repr)
        if held:
            gone = data.draw(st.lists(st.sampled_from(held), unique=True, max_size=6))
            self.index.apply(
                self.sources[number],
                [BlockRemoved(block_hashes=[self.engine_hash(prefix) for prefix in gone], group=group)],
            )
            model.held[group] -= Counter(gone)

    @rule(number=numbers)
    def clear(self, number: int) -> None:
        self.index.apply(self.sources[number], [AllBlocksCleared()])
        self.models[number] = Model(self.models[number].layout)
        self.announce_groups(number)

    @rule(number=numbers, layout=st.sampled_from(LAYOUTS))
    def restart(self, number: int, layout: list[tuple[GroupKind, int]]) -> None:
        self.index.close(self.sources[number])
        self.sources[number] = self.index.open(WorkerKey("w", number))
        self.models[number] = Model(layout)
        self.announce_groups(number)

    @rule(ids=prompts, salt=salts)
    def ask(self, ids: list[int], salt: str | None) -> None:
        self.asked.append((ids, salt))

    @invariant()
    def each_source_is_found_at_its_depth(self) -> None:
        for ids, salt in self.asked:
            self.compare(ids, salt)
            self.compare([*ids, 1], salt)

    def compare(self, ids: list[int], salt: str | None) -> None:
        found = self.index.find(tokens(ids), salt)
        expected = [model.usable(ids, salt) for model in self.models]
        assert [found.get(source, 0) for source in self.sources] == expected

    @invariant()
    def the_entries_are_those_of_the_model(self) -> None:
        held = sum(len(held) for model in self.models for held in model.held)
        assert self.index.stats().blocks == held

    def teardown(self) -> None:
        """What everybody gave back leaves nothing behind."""
        for source in getattr(self, "sources", ()):
            self.index.close(source)
        if hasattr(self, "index"):
            self.index.sweep(10**6)
            stats = self.index.stats()
            assert (stats.blocks, stats.prefixes, stats.swept_later) == (0, 0, 0)


class EngineHashMachine(IndexMachine):
    """The same with hashes that can be computed: what tokens cannot place makes the index use them."""

    def engine_hash(self, prefix: Prefix) -> int:
        salt, ids = prefix
        if len(ids) % BLOCK or not ids:
            return engine_hash(prefix)
        return vllm_hash(salt, ids)

    def teardown(self) -> None:
        for source in getattr(self, "sources", ()):
            assert not (source.samples and source.problem)
        super().teardown()


@cache
def vllm_hash(salt: str | None, ids: tuple[int, ...]) -> int:
    return EngineChain(tokens(ids), Layout(RECIPES[0], BLOCK), salt).end()


IndexMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
EngineHashMachine.TestCase.settings = IndexMachine.TestCase.settings
TestIndex = IndexMachine.TestCase
TestIndexOfEngineHashes = EngineHashMachine.TestCase
