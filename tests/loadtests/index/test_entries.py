"""The entries on the index, each broken on purpose beside the real peer; and the peer missing.

Skips what needs Dynamo where it is not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loadtests.index.entries import INDEX_ENTRIES, IndexEntry, run_index
from loadtests.peers import peers_dir
from loadtests.scorecard.evaluate import Measurement

HERE = Path(__file__).parent
SLOWER = "4"


@pytest.fixture(scope="module")
def peers() -> Path:
    directory = peers_dir()
    if not (directory / "dynamo/bin/python").exists():
        pytest.skip(f"no Dynamo in {directory}: run loadtests/peers/setup.sh")
    return directory


@pytest.fixture(scope="module")
def broken(peers: Path) -> dict[str, Measurement]:
    slow = [sys.executable, str(HERE / "slow_child.py"), SLOWER]
    return {m.name: m for m in run_index(INDEX_ENTRIES, 1, peers, slow, workers=[8])}


@pytest.mark.parametrize("entry", INDEX_ENTRIES, ids=lambda entry: entry.name)
def test_an_entry_turns_false_when_the_index_is_slowed(
    entry: IndexEntry, broken: dict[str, Measurement]
) -> None:
    measurement = broken[entry.name]
    assert measurement.holds is False, measurement.how
    assert measurement.value is not None
    assert measurement.value > entry.target


def test_a_wrong_answer_is_no_measurement(peers: Path) -> None:
    wrong = [sys.executable, str(HERE / "wrong_child.py")]
    (measurement,) = run_index(INDEX_ENTRIES[-1:], 1, peers, wrong, workers=[8])
    assert (measurement.holds, measurement.value) == (None, None)
    assert "kvgateway is wrong in events" in measurement.how


def test_without_the_peer_nothing_holds_and_nothing_fails(tmp_path: Path) -> None:
    for measurement in run_index(INDEX_ENTRIES, 1, tmp_path):
        assert (measurement.holds, measurement.value) == (None, None)
        assert "setup.sh makes it" in measurement.how
