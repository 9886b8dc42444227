"""Every entry broken on purpose: the gateway behind a front that burns CPU, measured beside the real peers.

Skips, with the reason, where the peers are not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from loadtests.peers import peers_dir
from loadtests.scorecard.entries import ENTRIES, OURS, Entry
from loadtests.scorecard.evaluate import Measurement
from loadtests.scorecard.run import Effort, run_scorecard
from loadtests.scorecard.servers import ROOT, Launch

BURN_MICROSECONDS = 500
"""Of CPU for each read of the front, both ways: a request and each of its tokens."""
EFFORT = Effort(repetitions=1, share=0.5)
HANDICAP = Path(__file__).with_name("handicap.py")


def handicapped(launch: Launch) -> Launch:
    """The gateway as one process tree with the slow front, which listens where the gateway would."""
    command = ["{port}" if part == str(launch.port) else part for part in launch.command]
    front = [sys.executable, str(HANDICAP), str(BURN_MICROSECONDS), str(launch.port)]
    return msgspec.structs.replace(
        launch, command=[*front, *command], env={**launch.env, "PYTHONPATH": str(ROOT)}
    )


@pytest.fixture(scope="module")
def peers() -> Path:
    directory = peers_dir()
    if not (directory / "bin/load_driver").exists():
        pytest.skip(f"no peers in {directory}: run loadtests/peers/setup.sh")
    return directory


@pytest.fixture(scope="module")
def broken(peers: Path) -> dict[str, Measurement]:
    measurements = []
    for server in {entry.server for entry in ENTRIES}:  # One that is slowed down is nobody's peer.
        entries = [entry for entry in ENTRIES if entry.server == server]
        measurements += run_scorecard(entries, EFFORT, peers, handicapped)
    return {m.name: m for m in measurements}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entry_turns_false_when_the_gateway_is_slowed(entry: Entry, broken: dict[str, Measurement]) -> None:
    measurement = broken[entry.name]
    assert measurement.holds is False, measurement.how
    assert measurement.value is not None
    assert measurement.value > entry.target


@pytest.mark.parametrize("program", ["dynamo", "vllm_router"])
def test_a_single_missing_peer_leaves_the_other_entries(program: str, peers: Path, tmp_path: Path) -> None:
    for part in peers.iterdir():
        if part.name != program:
            (tmp_path / part.name).symlink_to(part)
    entries = [entry for entry in ENTRIES if entry.phase.name != "streams64" and entry.server == OURS]
    gone = program.replace("_", "-")
    measurements = run_scorecard(entries, Effort(repetitions=1, share=0.1), tmp_path)
    assert {m.peer: m.holds is None for m in measurements} == {
        m.peer: m.peer == gone for m in measurements
    }, measurements
