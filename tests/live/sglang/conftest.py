"""The rig of SGLang workers; see the conftest above for what is shared."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import SETUP_SECONDS, SHARED
from tests.live.gateway import ROOT
from tests.live.sglang.rig import SglangRig

SETUP = ROOT / "scripts/sglang_setup.sh"


@pytest.fixture(scope="session")
def sglang_home(shared: Path) -> Path:
    """The cache directory with SGLang and its model; made now if it is not there."""
    if not (SHARED / "sglang_cpu/requirements.lock").exists():
        pytest.skip(f"live lane: no {SHARED / 'sglang_cpu/requirements.lock'}")
    done = subprocess.run([str(SETUP)], capture_output=True, text=True, timeout=SETUP_SECONDS)
    assert done.returncode == 0, f"{SETUP} failed:\n{done.stderr[-4000:]}"
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def rig(sglang_home: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangRig]:
    """Three workers and two gateways; all of them end with the session."""
    rig = SglangRig(sglang_home, shared / "data/kimi_k3_tokenizer", tmp_path_factory.mktemp("sglang"))
    try:
        rig.start()
        yield rig
    finally:
        rig.stop()


@pytest.fixture(autouse=True)
def gateway_survives(rig: SglangRig) -> Iterator[None]:
    """As in the conftest above; and no worker is harmed or keeps a request."""
    yield
    for front in (rig.plain, rig.pair):
        assert front.gateway.alive, front.gateway.tail()
    for worker in rig.workers:
        assert worker.alive, worker.tail()
