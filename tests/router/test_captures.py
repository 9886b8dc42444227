"""Recorded traffic of real engines, through the event decoder and the index."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from router.events import BlockRemoved, BlockStored, EngineHash, GroupKind, KvEvent, decode_batch
from router.hashing import PrefixHasher
from router.index import PrefixIndex
from router.messages import TokenIds, WorkerKey
from router.sequencer import Clear, Deliver, FeedState, Sequencer
from tests.router.wire import DATA, captures, read_frames, recorded_events

VLLM, SGLANG = "vllm-0.32.0", "sglang-0.5.23"
RECORDINGS = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.frames"))


class Replayed:
    """One worker's index after recordings."""

    def __init__(self) -> None:
        self.index = PrefixIndex(PrefixHasher(1))
        self.source = self.index.open(WorkerKey("w"))

    def take(self, *names: str) -> None:
        for name in names:
            self.index.apply(self.source, recorded_events(DATA / f"{name}.frames"))

    def usable(self, prompt: TokenIds, salt: str | None = None) -> int:
        return self.index.find(prompt, salt).get(self.source, 0)


def stores(name: str) -> list[BlockStored]:
    return [event for event in recorded_events(DATA / f"{name}.frames") if isinstance(event, BlockStored)]


def prompt_of(name: str, length: int) -> TokenIds:
    """The first tokens that a recording announces, in one chain from a prompt's start."""
    raw = b"".join(event.token_ids for event in stores(name))
    return np.frombuffer(raw, dtype=np.uint32)[:length]


def decode_plainly(payload: bytes) -> list[dict[str, object]]:
    return list(msgspec.msgpack.decode(payload)[1])


def check_against_plain_decoding(path: Path) -> None:
    """Every event of a recording is known, with the hashes, parents, tokens and groups it was sent with."""
    for message in read_frames(path):
        if not message[-1]:
            continue
        batch = decode_batch(message[-1])
        plain = decode_plainly(message[-1])
        assert batch.unknown == 0
        assert [type(event).__name__ for event in batch.events] == [event["type"] for event in plain]
        for event, sent in zip(batch.events, plain, strict=True):
            if isinstance(event, BlockStored | BlockRemoved):
                assert event.block_hashes == sent["block_hashes"]
                assert event.group == sent.get("group_idx", 0)
            if isinstance(event, BlockStored):
                assert event.parent == sent["parent_block_hash"]
                assert event.block_size == sent["block_size"]
                if event.kind is GroupKind.ATTENTION:
                    assert np.frombuffer(event.token_ids, dtype=np.uint32).tolist() == sent["token_ids"]


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_decode(name: str) -> None:
    check_against_plain_decoding(DATA / name)


def test_the_whole_collection_decodes() -> None:
    paths = [path for path in captures().rglob("*.frames") if path.parent.name != "load"]
    assert len(paths) > 50
    for path in paths:
        check_against_plain_decoding(path)


def test_dynamos_mocker_decodes() -> None:
    path = captures() / "dynamo-mocker-1.6.1-kv-events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    index = PrefixIndex(PrefixHasher(1))
    source = index.open(WorkerKey("w"))
    for line in lines:
        batch = decode_batch(bytes.fromhex(line["payload_hex"]))
        assert batch.unknown == 0
        index.apply(source, batch.events)
    assert index.stats().stored > 0
    # The recording begins in the middle of a life: some removals are of blocks stored before it.
    assert index.stats().orphans == 0


@pytest.mark.parametrize("folder", [f"{VLLM}/kv", f"{VLLM}/hybrid_mamba", f"{VLLM}/hybrid_swa"])
def test_the_collection_replays_without_loose_ends(folder: str) -> None:
    """One subscription a folder, restart included; what it announced adds up to what the index holds."""
    index = PrefixIndex(PrefixHasher(1))
    source = index.open(WorkerKey("w"))
    sequencer = Sequencer(can_replay=False)
    sequencer.connected()
    held: Counter[tuple[int, EngineHash]] = Counter()
    for path in sorted((captures() / folder).glob("*.frames")):
        for message in [] if "replay" in path.name else read_frames(path):
            for action in sequencer.live(int.from_bytes(message[-2], "big"), message[-1]):
                if isinstance(action, Clear):
                    index.clear(source)
                    held.clear()
                if isinstance(action, Deliver):
                    events = decode_batch(action.payload).events
                    index.apply(source, events)
                    count(held, events)
    stats = index.stats()
    assert sequencer.state is FeedState.EXACT
    assert sequencer.counters.restarts == (1 if folder.endswith("/kv") else 0)
    assert (stats.orphans, stats.unknown_removed, stats.odd_sizes, stats.unplaced) == (0, 0, 0, 0)
    assert stats.blocks == len(+held) > 0


def count(held: Counter[tuple[int, EngineHash]], events: list[KvEvent]) -> None:
    for event in events:
        if isinstance(event, BlockStored):
            held.update((event.group, block) for block in event.block_hashes)
        elif isinstance(event, BlockRemoved):
            held.subtract((event.group, block) for block in event.block_hashes)
        else:
            held.clear()


def test_sglangs_eviction_adds_up() -> None:
    """The recordings leave batches out, so some removals are of blocks that were never seen."""
    index = PrefixIndex(PrefixHasher(1))
    source = index.open(WorkerKey("w"))
    for path in sorted((captures() / SGLANG / "kv_evict").glob("*.frames")):
        index.apply(source, recorded_events(path))
    stats = index.stats()
    assert stats.stored - stats.removed <= stats.blocks <= stats.stored
    assert stats.orphans == 0


def test_a_hybrid_models_cached_tokens_are_predicted() -> None:
    """Mamba and attention groups; what the engine reported as cached_tokens is from the same run."""
    folder = f"{VLLM}/hybrid_mamba"
    replayed = Replayed()
    fresh = prompt_of(f"{folder}/h01_fresh_200", 200)
    assert replayed.usable(fresh) == 0
    replayed.take(f"{folder}/h01_fresh_200")
    assert replayed.usable(fresh) == 192  # a full hit: the engine had nothing to announce
    replayed.take(f"{folder}/h02_repeat")
    shared = np.concatenate([fresh[:128], prompt_of(f"{folder}/h03_shared128", 200)[128:]])
    assert replayed.usable(shared) == 0  # four attention blocks, but no state at 128 yet
    replayed.take(f"{folder}/h03_shared128")
    assert replayed.usable(fresh[:192]) == 128
    replayed.take(f"{folder}/h04_exact_192")
    assert replayed.usable(fresh[:192]) == 160
    replayed.take(f"{folder}/h05_salt_lora_none")
    salted = np.concatenate([fresh[:63], [1]]).astype(np.uint32)
    assert replayed.usable(salted, "s") == 32
    replayed.take(f"{folder}/h07_reset")
    assert replayed.usable(fresh) == 32
    assert replayed.index.stats().orphans == 0


def test_a_sliding_window_models_cached_tokens_are_predicted() -> None:
    folder = f"{VLLM}/hybrid_swa"
    replayed = Replayed()
    fresh = prompt_of(f"{folder}/h01_fresh_200", 200)
    replayed.take(f"{folder}/h01_fresh_200")
    assert replayed.usable(fresh) == 192
    shared = np.concatenate([fresh[:128], np.arange(60, dtype=np.uint32)])
    assert replayed.usable(shared) == 0
    replayed.take(f"{folder}/h02_repeat", f"{folder}/h03_shared128")
    assert replayed.usable(fresh[:192]) == 160
    assert replayed.usable(shared) == 128


def test_an_attention_model_with_a_salt_and_a_reset() -> None:
    replayed = Replayed()
    prompt = prompt_of(f"{VLLM}/kv/01_fresh_100tok", 100)
    replayed.take(f"{VLLM}/kv/11_replay_from0_DEALER")
    assert replayed.usable(np.append(prompt, prompt)) == 96
    assert replayed.usable(np.append(prompt, prompt), "tenant-a") == 0  # cleared by the last batch
    replayed.take(f"{VLLM}/kv/08_cache_salt")
    assert replayed.usable(np.append(prompt, prompt), "tenant-a") == 96
    assert replayed.usable(np.append(prompt, prompt), "tenant-b") == 0


def test_three_copies_take_three_removals_on_a_real_engine() -> None:
    name = f"{VLLM}/kv/34_duplicate_block_store_and_evict"
    events = recorded_events(DATA / f"{name}.frames")
    first = next(event for event in events if isinstance(event, BlockStored))
    prompt = np.append(np.frombuffer(first.token_ids, dtype=np.uint32), np.uint32(1))
    replayed = Replayed()
    depths = []
    for event in events:
        replayed.index.apply(replayed.source, [event])
        if isinstance(event, BlockRemoved) and event.block_hashes[0] in first.block_hashes:
            depths.append(replayed.usable(prompt))
    assert depths == [96, 96, 64, 32, 0]


def test_sglang_announces_twice_and_removes_once() -> None:
    replayed = Replayed()
    prompt = np.append(prompt_of(f"{SGLANG}/kv_evict/20_X_t1", 128), np.uint32(1))
    replayed.take(f"{SGLANG}/kv_evict/20_X_t1", f"{SGLANG}/kv_evict/21_X_t2")
    assert replayed.usable(prompt) == 128
    replayed.take(f"{SGLANG}/kv_evict/22_evict_LRU")
    assert replayed.usable(prompt) == 128


def test_sglangs_salt_field_and_flush() -> None:
    replayed = Replayed()
    name = f"{SGLANG}/kv/08b_cache_salt_generate"
    prompt = prompt_of(name, 96)
    replayed.take(name)
    assert replayed.usable(prompt, "tenant-b") == 64
    assert replayed.usable(prompt) == 0
    replayed.take(f"{SGLANG}/kv/09_flush_cache")
    assert replayed.usable(prompt, "tenant-b") == 0


def test_sglangs_pages_of_one_token() -> None:
    replayed = Replayed()
    replayed.take(f"{SGLANG}/hybrid_mamba/10_turn1")
    turn = prompt_of(f"{SGLANG}/hybrid_mamba/10_turn1", 207)
    assert replayed.usable(np.append(turn, turn[:40])) == 207
    replayed.take(f"{SGLANG}/hybrid_mamba/11_turn2")
    assert replayed.index.stats().orphans == 0
