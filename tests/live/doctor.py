"""`kvgateway doctor` as an operator runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.live.gateway import ROOT

SECONDS = 120


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and all that was seen."""
    command = [sys.executable, "-m", "gateway.cli", "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=ROOT, check=False)
    assert done.stdout, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, seen


def codes(seen: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in seen["findings"]}
