"""Results: one JSON object a line, on standard output and in a file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path


class Record:
    """Where an experiment writes what it found."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, experiment: str, **found: object) -> None:
        line = json.dumps({"experiment": experiment, **found}, default=str)
        print(line, flush=True)
        with self._path.open("a") as file:
            file.write(line + "\n")


def median_ms(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 2)
