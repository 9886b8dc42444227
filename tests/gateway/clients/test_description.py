"""Requests made up from the API's description, against the demo: no 5xx, no status that is not in it.

docs/api.md has the command for a long run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_made_up_requests_get_described_answers(base_url: str, tmp_path: Path) -> None:
    tool = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    assert tool is not None
    command = [tool, "run", base_url.removesuffix("/v1") + "/openapi.json", "--checks", CHECKS]
    command += ["--phases", "fuzzing", "-n", "4", "--no-shrink", "--generation-database", "none"]
    done = subprocess.run(
        [*command, "--no-color", "--warnings", "off"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout[-6000:]
