"""The rig of the pair; see the conftest above for what is shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.pair.rig import Pair


@pytest.fixture(scope="session")
def pair(home: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Three workers and two gateways; all of them end with the session."""
    pair = Pair(home, shared / "data/kimi_k3_tokenizer", tmp_path_factory.mktemp("pair"))
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()


@pytest.fixture(autouse=True)
def gateway_survives(pair: Pair) -> Iterator[None]:
    """As in the conftest above, whose rig is not needed here."""
    yield
    for front in (pair.pair, pair.mixed):
        assert front.gateway.alive, front.gateway.tail()
