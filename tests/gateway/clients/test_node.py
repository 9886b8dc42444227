"""The OpenAI and Anthropic clients for Node against the demo; skipped where they cannot be had."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGES = ("openai@7", "@anthropic-ai/sdk@1")
SCRIPT = Path(__file__).with_name("clients.mjs")


def install(folder: Path) -> str:
    """Get the clients; why they cannot be had, or nothing."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "no node or no npm"
    if all((folder / "node_modules" / name.rpartition("@")[0]).exists() for name in PACKAGES):
        return ""
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *PACKAGES]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    except subprocess.SubprocessError as error:
        return f"npm cannot install the clients: {(getattr(error, 'stderr', '') or repr(error))[-300:]}"
    return ""


@pytest.fixture(scope="session", name="modules")
def modules_fixture() -> Path:
    """A folder with the clients, kept from run to run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvgateway" / "node-clients"
    folder.mkdir(parents=True, exist_ok=True)
    if reason := install(folder):
        pytest.skip(reason)  # the project needs neither Node nor its registry
    return folder


def test_what_their_users_do(base_url: str, modules: Path) -> None:
    script = modules / SCRIPT.name  # where Node looks for the modules
    script.write_text(SCRIPT.read_text())
    command = ["node", str(script), base_url.removesuffix("/v1")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
