"""The rig of the proof's short version; see the conftest above for what is shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import SHARED
from tests.live.routing.rig import RoutingRig


@pytest.fixture(scope="session", params=["vllm-k3-vocab", "sglang-lfm2"])
def rig(
    shared: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RoutingRig]:
    """Two workers of one hybrid model and the gateway; all of them end with the tests that use it."""
    engine: str = request.param
    if not (SHARED / f"{engine.partition('-')[0]}_cpu/requirements.lock").exists():
        pytest.skip(f"live lane: nothing to build {engine} from")
    rig = RoutingRig(engine, tmp_path_factory.mktemp(engine))
    try:
        rig.start()
        yield rig
    finally:
        rig.stop()
