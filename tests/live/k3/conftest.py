"""The rig of the worker with a tokenizer; see the conftest above for what is shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.k3.rig import K3Rig


@pytest.fixture(scope="session")
def k3(home: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[K3Rig]:
    """One worker and two gateways; all of them end with the session."""
    rig = K3Rig(home, shared / "data/kimi_k3_tokenizer", tmp_path_factory.mktemp("k3"))
    try:
        rig.start()
        yield rig
    finally:
        rig.stop()


@pytest.fixture(autouse=True)
def gateway_survives(k3: K3Rig) -> Iterator[None]:
    """As in the conftest above, whose rig is not needed here."""
    yield
    for front in (k3.constrained, k3.free):
        assert front.gateway.alive, front.gateway.tail()
