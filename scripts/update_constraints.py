"""Pin every dependency: resolve them afresh with uv and write the exact versions into pyproject.toml.

    uv run scripts/update_constraints.py            newest versions that fit
    uv run scripts/update_constraints.py --print    the pinned versions, as a constraints file for pip

A lock file would name the hosts of package indexes; constraints name versions alone.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description="Refresh the exact versions in pyproject.toml.")
    parser.add_argument("--print", action="store_true", help="print the pinned versions and change nothing")
    options = parser.parse_args()
    text = PROJECT.read_text()
    if options.print:
        print("\n".join(tomllib.loads(text)["tool"]["uv"]["constraint-dependencies"]))
        return
    project = tomllib.loads(text)
    text = with_list(text, "constraint-dependencies", resolve(project, requirements(project)))
    text = with_list(
        text, "build-constraint-dependencies", resolve(project, project["build-system"]["requires"])
    )
    PROJECT.write_text(text)


def requirements(project: dict[str, Any]) -> list[str]:
    """What the package, its extras and the dependency groups ask for."""
    lists = [
        project["project"]["dependencies"],
        *project["project"].get("optional-dependencies", {}).values(),
        *project.get("dependency-groups", {}).values(),
    ]
    return [requirement for listed in lists for requirement in listed if isinstance(requirement, str)]


def resolve(project: dict[str, Any], wanted: Sequence[str]) -> list[str]:
    """Exact versions of all that `wanted` needs, for every platform and Python version of the project."""
    oldest = project["project"]["requires-python"].removeprefix(">=")
    with tempfile.TemporaryDirectory() as folder:  # where no pyproject.toml constrains the answer
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", oldest]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "-"]
        overrides = project["tool"]["uv"].get("override-dependencies", [])
        if overrides:
            (Path(folder) / "overrides.txt").write_text("\n".join(overrides))
            command += ["--override", "overrides.txt"]
        done = subprocess.run(
            command, cwd=folder, input="\n".join(wanted), text=True, stdout=subprocess.PIPE, check=True
        )
    return [line for line in done.stdout.splitlines() if "==" in line]


def with_list(text: str, key: str, values: Sequence[str]) -> str:
    """The TOML text with another value for a list that is written one item a line."""
    lines = "".join(f'    "{value}",\n' for value in values)
    changed, count = re.subn(rf"(?ms)^{key} = \[\n.*?^\]$", f"{key} = [\n{lines}]", text)
    if count != 1:
        raise SystemExit(f"{PROJECT.name}: expected one list {key}, found {count}")
    return changed


if __name__ == "__main__":
    main()
