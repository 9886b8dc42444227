"""The peers' setup names one directory for one content, and its C files build."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from loadtests.peers import SETUP, peers_dir


def where(**env: str) -> Path:
    done = subprocess.run(
        [str(SETUP), "--where"], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


def test_the_directory_is_outside_the_checkout(tmp_path: Path) -> None:
    directory = where(KVGATEWAY_PEERS="", XDG_CACHE_HOME=str(tmp_path))
    assert directory.parent == tmp_path / "kvgateway"
    assert not directory.exists(), "--where makes nothing"


def test_the_variable_names_the_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVGATEWAY_PEERS", str(tmp_path))
    assert peers_dir() == tmp_path


def test_another_content_gives_another_directory(tmp_path: Path) -> None:
    copy = tmp_path / "peers"
    shutil.copytree(SETUP.parent, copy)
    (copy / "dynamo.txt").write_text("ai-dynamo==0\n")
    env = {**os.environ, "KVGATEWAY_PEERS": ""}
    done = subprocess.run(
        [str(copy / "setup.sh"), "--where"], env=env, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) != where(KVGATEWAY_PEERS="")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("source", ["mock_worker.c", "load_driver.c"])
def test_the_tools_build(source: str, tmp_path: Path) -> None:
    subprocess.run(
        ["cc", "-O1", "-w", "-o", str(tmp_path / "tool"), str(SETUP.parent / source)], check=True, timeout=120
    )
