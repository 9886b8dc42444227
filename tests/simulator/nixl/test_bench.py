"""The benchmark runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from simulator.bench import main


def test_a_small_run(nixl: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tokens", "640", "--runs", "1"]) == 0
    head, _, *rows, path = capsys.readouterr().out.splitlines()
    assert head.startswith("20 blocks of 4096 bytes")
    found = {
        name.strip(): int(count) for name, count in re.findall(r"^(.{24})\s+(\d+)\s", "\n".join(rows), re.M)
    }
    assert found["NIXL alone, in a row"] == 1
    assert found["NIXL alone, scattered"] > 1
    assert found["simulated, used pools"] >= 1
    assert path.startswith("the simulated workers' path: nixl: ")
