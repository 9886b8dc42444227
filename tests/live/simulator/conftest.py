"""A real engine of its own: neither the gateway nor the other workers are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.simulator.engine import SmallWorker


@pytest.fixture(autouse=True)
def gateway_survives() -> None:
    """There is no gateway here."""


@pytest.fixture(scope="module")
def engine(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallWorker]:
    """A hybrid model in a pool that is soon full."""
    worker = SmallWorker("small", home, tmp_path_factory.mktemp("simulator"))
    worker.start()
    try:
        worker.wait_ready()
        yield worker
    finally:
        worker.stop()
