"""The command: what it prints and how it ends without peers, and for wrong names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.index.entries import INDEX_ENTRIES
from loadtests.scorecard.entries import ENTRIES
from loadtests.scorecard.evaluate import NOT_MEASURED
from loadtests.scorecard.text import TEXT_ENTRIES

NAMES = [entry.name for entry in ENTRIES]
FIELDS = ["name", "value", "unit", "target", "holds", "peer", "how"]


def scorecard(*arguments: str, peers: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadtests.scorecard", *arguments],
        env={**os.environ, "KVGATEWAY_PEERS": str(peers)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_without_peers_every_line_is_null_and_the_exit_is_not_zero(tmp_path: Path) -> None:
    done = scorecard("--quick", *NAMES, peers=tmp_path / "nothing")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == NOT_MEASURED
    assert [line["name"] for line in lines] == NAMES
    for line in lines:
        assert list(line) == FIELDS
        assert (line["holds"], line["value"]) == (None, None)
        assert "setup.sh makes it" in line["how"]


def test_names_choose_entries(tmp_path: Path) -> None:
    name = ENTRIES[-1].name
    done = scorecard(name, peers=tmp_path)
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == [name]


@pytest.mark.parametrize("arguments", [("no_such_entry",), ("--quick", "--full")])
def test_a_wrong_command_line_is_refused(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = scorecard(*arguments, peers=tmp_path)
    assert done.returncode == 2
    assert not done.stdout


def test_list_says_what_each_entry_means(tmp_path: Path) -> None:
    done = scorecard("--list", peers=tmp_path)
    names = [*NAMES, *(text.name for text in TEXT_ENTRIES), *(index.name for index in INDEX_ENTRIES)]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == names
