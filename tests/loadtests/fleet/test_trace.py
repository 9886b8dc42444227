"""Reading and writing traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.fleet.trace import TraceError, load_trace, save_trace
from loadtests.fleet.workloads import chat

LINES = """\
{"timestamp": 2000, "input_length": 1100, "output_length": 500, "hash_ids": [7, 8, 9]}
{"timestamp": 5000, "input_length": 1024, "output_length": 0, "hash_ids": [7, 8]}
"""


def test_a_trace_starts_at_0_and_may_run_faster(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(LINES)
    first, second = load_trace(path, speed=2.0)
    assert (first.arrival, second.arrival) == (0.0, 1.5)
    assert (first.prompt_tokens, first.output_tokens, second.output_tokens) == (1100, 500, 1)
    assert first.blocks[:2] == second.blocks
    assert len(first.blocks) == 1600 // 512
    assert [request.arrival for request in load_trace(path, first=1)] == [0.0]


def test_what_is_no_trace_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(LINES + '{"timestamp": 1}\n')
    with pytest.raises(TraceError, match=r"t\.jsonl:3: "):
        load_trace(path)
    path.write_text(LINES)
    with pytest.raises(TraceError, match="no requests"):
        load_trace(path, first=2)


def test_a_saved_trace_reads_back_with_the_same_sharing(tmp_path: Path) -> None:
    requests = sorted(chat(1, 512, rate=2.0, duration=10.0).requests, key=lambda request: request.arrival)
    path = tmp_path / "t.jsonl"
    save_trace(path, requests, 512)
    loaded = load_trace(path)
    assert len(loaded) == len(requests)
    meaning: dict[int, int] = {}
    for before, after in zip(requests, loaded, strict=True):
        assert after.arrival == pytest.approx(before.arrival - requests[0].arrival, abs=1e-5)
        assert (after.prompt_tokens, after.output_tokens) == (before.prompt_tokens, before.output_tokens)
        for old, new in zip(before.blocks[: before.prompt_tokens // 512], after.blocks, strict=False):
            assert meaning.setdefault(old, new) == new
    assert len(set(meaning.values())) == len(meaning)
