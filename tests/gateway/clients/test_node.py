"""The OpenAI and Anthropic clients for Node against the demo; skipped where they cannot be had."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGES = ("openai@7", "@anthropic-ai/sdk@1")
SCRIPT = Path(__file__).with_name("clients.mjs")


@pytest.fixture(scope="session", name="modules")
def modules_fixture() -> Path:
    """A folder with the clients, kept from run to run."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node or no npm")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvgateway" / "node-clients"
    folder.mkdir(parents=True, exist_ok=True)
    if not all((folder / "node_modules" / name.rpartition("@")[0]).exists() for name in PACKAGES):
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *PACKAGES]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        except subprocess.TimeoutExpired:
            pytest.skip("npm did not install the clients in time")
        if done.returncode != 0:
            pytest.skip(f"npm cannot install the clients: {done.stderr[-300:]}")
    return folder


def test_what_their_users_do(base_url: str, modules: Path) -> None:
    script = modules / SCRIPT.name  # where Node looks for the modules
    script.write_text(SCRIPT.read_text())
    command = ["node", str(script), base_url.removesuffix("/v1")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
