"""Peers of the scorecard, and the tools that measure them; `setup.sh` installs both outside the checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

SETUP = Path(__file__).with_name("setup.sh")


def peers_dir() -> Path:
    """Where `setup.sh` puts (or has put) tools and peers; it need not exist."""
    where = subprocess.run([str(SETUP), "--where"], check=True, capture_output=True, text=True)
    return Path(where.stdout.strip())
