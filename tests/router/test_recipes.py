"""The engines' own hashes: against recorded events, and as the index uses them."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from router.hashing import HashMemo, PrefixHasher
from router.hits import Depth, ending_in_part
from router.index import PrefixIndex
from router.messages import TokenIds, WorkerInfo, WorkerKey
from router.recipes import RECIPES, BlockChain, EngineChain, Layout, Recipe, identify, key_of
from router.selector import Router
from tests.router.wire import DATA, captures, recorded_events, removed, state, stored, tokens

BY_NAME = {recipe.name: recipe for recipe in RECIPES}
VLLM = BY_NAME["sha256"]
PROMPT = np.random.default_rng(1).integers(0, 163_840, 4096, dtype=np.uint32)


def published(prompt: TokenIds, recipe: Recipe, unit: int, salt: str | None = None) -> list[int]:
    chain = EngineChain(prompt, Layout(recipe, unit), salt)
    while chain.grow():
        pass
    return chain.hashes


def first_stores(folder: str) -> list[BlockStored]:
    paths = sorted((captures() / folder).glob("*.frames"))
    events = [event for path in paths for event in recorded_events(path)]
    return [event for event in events if isinstance(event, BlockStored) and event.parent is None]


# Recipes


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("vllm-0.32.0/kv", "sha256 seed 0/32"),
        ("vllm-0.32.0/hybrid_mamba", "sha256 seed 0/32"),
        ("vllm-0.32.0/hybrid_swa", "sha256 seed 0/32"),
        ("vllm-0.32.0/pd", "sha256 seed 0/32"),
        ("sglang-0.5.23/kv", "sglang/32"),
        ("sglang-0.5.23/kv_evict", "sglang/32"),
        ("sglang-0.5.23/hybrid_mamba", "sglang/1"),
    ],
)
def test_every_recorded_chain_can_be_computed(folder: str, name: str) -> None:
    """Salted ones too, and each block of the chain."""
    stores = [event for event in first_stores(folder) if event.token_ids and event.block_hashes]
    assert stores
    for event in stores:
        layout = identify(event)
        assert str(layout) == name
        assert layout is not None
        ids = np.frombuffer(event.token_ids, dtype=np.uint32)
        keys = [key_of(block, layout.recipe.published) for block in event.block_hashes]
        assert published(ids, layout.recipe, layout.unit, event.cache_salt) == keys


def test_sglangs_dynamo_format_is_recognized_only_without_a_namespace() -> None:
    stores = first_stores("sglang-0.5.23/kv_dynamo")
    assert [identify(event) is not None for event in stores] == [True, False, False]


def test_cbor_as_its_library_writes_it() -> None:
    """Digests of cbor2 6.3.0's canonical form."""
    ids = tokens([1, 23, 24, 255, 256, 65535, 65536, 163585, 4294967295]).tobytes()
    cbor = BY_NAME["sha256_cbor"]
    assert cbor.root(None).hex() == "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"
    step = cbor.step(b"x" * 32, ids, "tenant").hex()
    assert step == "f601abfd19dec3d8820247ca5ca41e0520d6d98e3a0c3c224a7ae39708b2ffa0"
    step = cbor.step(b"x" * 32, ids, None).hex()
    assert step == "857a1a6e581489d9045d2c44e8d7f0fbc6c11b11638125a9c75afb731b3d3636"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_store_tells_the_recipe_the_unit_and_the_salt(recipe: Recipe) -> None:
    for size, unit in [(64, 64), (1536, 1536), (1536, 128)]:
        if unit != size and not recipe.units:
            continue
        last = published(PROMPT[:size], recipe, unit, "s")[-1]
        event = stored([last], PROMPT[:size], block_size=size, cache_salt="s")
        assert identify(event) == Layout(recipe, unit)
        assert identify(msgspec.structs.replace(event, cache_salt="t")) is None
        assert identify(msgspec.structs.replace(event, block_hashes=[last ^ 1])) is None


def test_odd_stores_tell_nothing() -> None:
    assert identify(stored([1], block_size=0)) is None
    assert identify(stored([1], PROMPT[:8], block_size=16)) is None
    assert identify(stored([b""], PROMPT[:16], block_size=16)) is None
    assert identify(stored([1], PROMPT, block_size=1 << 40)) is None
    held = Held()
    held.apply(stored([1], block_size=0), stored([2], PROMPT[:64], parent=9, block_size=64))
    assert held.usable(PROMPT) == 0


def test_published_forms_mean_the_same() -> None:
    digest = sha256(b"x").digest()
    low, high = digest[24:], digest[:8]
    assert key_of(digest, 24) == key_of(int.from_bytes(low, "big"), 24)
    assert key_of(int.from_bytes(high, "big", signed=True), 0) == int.from_bytes(high, "big")


def test_a_chain_is_lazy_and_resumes_from_a_memo() -> None:
    whole = published(PROMPT, VLLM, 16)
    memo = HashMemo()
    chain = EngineChain(PROMPT[:1000], Layout(VLLM, 16), memo=memo)
    assert chain.grow()
    assert chain.hashes == whole[:8]
    assert chain.grow()
    assert len(chain.hashes) == 16
    shared = memo.fork(200)
    again = EngineChain(PROMPT, Layout(VLLM, 16), memo=shared)
    assert again.end() == whole[-1]
    while again.grow():
        pass
    assert again.hashes == whole
    blocks = BlockChain(EngineChain(PROMPT, Layout(VLLM, 16)), 3)
    while blocks.grow():
        pass
    assert blocks.hashes == whole[2::3]
    assert EngineChain(PROMPT[:3], Layout(VLLM, 16)).end() == 0
    for number in range(20):
        memo.digests(16, str(number))
    assert memo.digests(16, "19") is memo.digests(16, "19")


# The index goes over to them when tokens cannot place a block


class Held:
    """One worker in an index."""

    def __init__(self) -> None:
        self.index = PrefixIndex(PrefixHasher(1))
        self.source = self.index.open(WorkerKey("w"))

    def apply(self, *events: KvEvent) -> None:
        self.index.apply(self.source, events)

    def usable(self, prompt: TokenIds, salt: str | None = None, memo: HashMemo | None = None) -> int:
        return self.index.find(prompt, salt, memo=memo).get(self.source, 0)


def without_places(event: KvEvent) -> KvEvent:
    """As from an engine that tells neither tokens nor parents."""
    if not isinstance(event, BlockStored):
        return event
    return msgspec.structs.replace(event, token_ids=b"", parent=None)


def test_hybrid_hits_need_neither_parents_nor_tokens() -> None:
    """Recorded from a real engine, and stripped but for one store; the cached tokens are its own."""
    folder = DATA / "vllm-0.32.0/hybrid_mamba"
    held = Held()
    first = recorded_events(folder / "h01_fresh_200.frames")
    (attention,) = (
        event for event in first if isinstance(event, BlockStored) and len(event.block_hashes) == 6
    )
    fresh = np.append(np.frombuffer(attention.token_ids, dtype=np.uint32), np.arange(8, dtype=np.uint32))

    def take(name: str) -> None:
        held.apply(*map(without_places, recorded_events(folder / f"{name}.frames")))

    held.apply(attention)
    take("h01_fresh_200")
    held.apply(BlockRemoved(block_hashes=attention.block_hashes, group=1))  # taken in twice
    assert held.source.hashing == "engine hashes (sha256 seed 0/32)"
    assert held.usable(fresh) == 192
    shared = np.concatenate([fresh[:128], np.arange(70, dtype=np.uint32)])
    assert held.usable(shared) == 0
    take("h03_shared128")
    assert held.usable(fresh[:192]) == 128
    assert held.usable(shared) == 128
    take("h04_exact_192")
    assert held.usable(fresh[:192]) == 160
    take("h05_salt_lora_none")
    assert held.usable(np.append(fresh[:63], fresh[:1]), "s") == 32
    assert held.usable(fresh) == 192
    assert held.index.find(fresh, lora="adapter") == {}
    assert held.index.stats().unplaced == 0
    take("h07_reset")
    assert held.source.hashing == "tokens"


def test_tokens_place_what_they_can() -> None:
    hashes = published(PROMPT[:256], VLLM, 64)
    held = Held()
    held.apply(stored(hashes[:2], PROMPT[:128], block_size=64))
    held.apply(stored(hashes[2:], PROMPT[128:256], parent=hashes[1], block_size=64))
    assert (held.source.hashing, held.source.problem) == ("tokens", "")
    assert held.usable(PROMPT) == 256


@pytest.mark.parametrize("samples_first", [True, False])
def test_a_lost_parent_is_no_loss(samples_first: bool) -> None:
    """Also of blocks that came before anything told how the engine hashes."""
    hashes = published(PROMPT, VLLM, 64)
    tail = stored(hashes[4:], PROMPT[256:], parent=hashes[3], block_size=64)
    other = published(PROMPT[64:], VLLM, 64)
    sample = stored(other[:1], PROMPT[64:128], block_size=64)
    held = Held()
    for event in (sample, tail) if samples_first else (tail, sample):
        held.apply(event)
    assert held.source.hashing == "engine hashes (sha256/64)"
    assert held.usable(PROMPT) == 0
    held.apply(stored(hashes[:4], PROMPT[:256], block_size=64))
    assert held.usable(PROMPT) == len(PROMPT) - 64
    assert (held.index.stats().unplaced, held.source.problem) == (0, "")
    held.apply(removed(hashes[60:]))
    assert held.usable(PROMPT) == 60 * 64
    memo = HashMemo()
    assert held.usable(PROMPT, memo=memo) == held.usable(PROMPT, memo=memo) == 60 * 64
    held.apply(AllBlocksCleared())
    assert held.usable(PROMPT) == 0
    held.index.close(held.source)
    held.index.sweep(10**6)
    assert (held.index.stats().blocks, held.index.stats().prefixes) == (0, 0)


def test_unknown_hashes_that_tokens_cannot_place_are_a_problem() -> None:
    router = Router("kv", seed=1)
    router.add_worker(WorkerInfo(worker="w", models=["m"]))
    key = WorkerKey("w")
    orphans = stored([1, 2], PROMPT[:128], parent=99, block_size=64)

    def problem() -> str:
        return router.snapshot_stats().targets[0].problem

    assert problem() == ""
    router.apply(key, [orphans])
    assert "2 blocks cannot be placed" in problem()
    assert "not be tested yet" in problem()
    for number in range(4):
        start = PROMPT[64 * number :][:64]
        router.apply(key, [stored([1000 + number], start, block_size=64), orphans])
    assert "not of a known recipe" in problem()
    assert router.snapshot_stats().targets[0].hashing == "tokens"
    router.clear(key)
    assert problem() == ""


# Blocks in units (K3's recipe: blocks of 1,536 tokens, a match unit of 128; here 64 and 16)


class UnitEngine:
    """Holds whole blocks, and the last part of a prompt under its last unit's hash; state at its end only."""

    def __init__(self, block: int = 64, unit: int = 16) -> None:
        self.block, self.unit = block, unit
        self.attention: set[int] = set()
        self.states: set[int] = set()

    def serve(self, prompt: TokenIds) -> list[KvEvent]:
        """The events of one request."""
        hashes = published(prompt, VLLM, self.unit)
        per_block = self.block // self.unit
        whole = hashes[per_block - 1 :: per_block]
        events: list[KvEvent] = []
        end = len(whole) * self.block
        if whole:
            events.append(stored(whole, prompt[:end], block_size=self.block))
        if len(hashes) % per_block:
            last = len(hashes) * self.unit
            parent = hashes[-2] if len(hashes) > 1 else None
            part = prompt[last - self.unit : last]
            events.append(stored(hashes[-1:], part, parent=parent, block_size=self.unit))
            self.attention.add(hashes[-1])
        events.insert(0, state(hashes[-1:], block_size=self.unit))
        self.attention.update(whole)
        self.states.update(hashes[-1:])
        return events

    def cached(self, prompt: TokenIds) -> int:
        """The rule, by brute force."""
        hashes = published(prompt, VLLM, self.unit)
        per_block = self.block // self.unit
        best = 0
        for end in range(1, (len(prompt) - 1) // self.unit + 1):
            whole = hashes[per_block - 1 : end : per_block]
            held = self.attention.issuperset(whole) and hashes[end - 1] in self.attention
            if held and hashes[end - 1] in self.states:
                best = end * self.unit
        return best


lengths = st.lists(st.tuples(st.integers(0, 2), st.integers(16, 400)), min_size=1, max_size=8)


@given(lengths)
def test_partial_blocks_place_exactly(requests: list[tuple[int, int]]) -> None:
    """Prompts of three stems; the index predicts what the engine would reuse, request after request."""
    engine, held = UnitEngine(), Held()
    held.apply(*engine.serve(PROMPT[1000 : 1000 + 4 * engine.block + 20]))  # the self-test's
    for stem, length in requests:
        prompt = np.append(PROMPT[:100], PROMPT[200 * stem :])[:length]
        assert held.usable(prompt) == engine.cached(prompt)
        held.apply(*engine.serve(prompt))
        longer = np.append(prompt, PROMPT[-70:])
        assert held.usable(longer) == engine.cached(longer) == length // 16 * 16
    assert held.source.hashing == "engine hashes (sha256/16)"
    assert held.index.stats().unplaced == 0


def test_k3s_own_sizes() -> None:
    engine, held = UnitEngine(1536, 128), Held()
    shared, prompt = PROMPT[:3000], PROMPT[:4000]
    held.apply(*engine.serve(shared))
    assert held.usable(prompt) == 2944
    held.apply(*engine.serve(prompt))
    assert held.usable(np.append(prompt, prompt)) == 3968
    assert held.usable(PROMPT[:2900]) == 0
    held.apply(removed([published(shared, VLLM, 128)[-1]], group=1))
    assert held.usable(np.append(shared, shared)) == 0


masks = st.integers(0, 7)


@given(st.lists(masks, min_size=13, max_size=13), st.lists(masks, min_size=13, max_size=13))
def test_ending_in_part(attention: list[int], states: list[int]) -> None:
    units = list(range(100, 113))
    tables = [dict(zip(units, held, strict=True)) for held in (attention, states)]
    expected, depths = [], []
    for source in range(3):
        bit = 1 << source
        whole = 0
        while (whole + 1) * 4 <= 13 and attention[whole * 4 + 3] & bit:
            whole += 1
        if whole:
            depths.append((whole, bit))
        ends = [
            end
            for end in range(1, min(13, whole * 4 + 3) + 1)
            if states[end - 1] & bit and (end % 4 == 0 or attention[end - 1] & bit)
        ]
        expected.append(max(ends, default=0))
    found: list[Depth] = ending_in_part(units, merged(depths), 7, 4, tables[0], [tables[1]])
    assert [next((end for end, held in found if held >> source & 1), 0) for source in range(3)] == expected


def merged(depths: list[Depth]) -> list[Depth]:
    by_depth: dict[int, int] = {}
    for depth, members in depths:
        by_depth[depth] = by_depth.get(depth, 0) | members
    return sorted(by_depth.items(), reverse=True)
