"""What the project's own files promise each other."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.settings import settings_fields
from gateway.settings.sources import OTHER_ENV

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinned(project: dict[str, Any], key: str = "constraint-dependencies") -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in project["tool"]["uv"][key]:
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def asked_for(project: dict[str, Any]) -> list[Requirement]:
    return [Requirement(line) for line in script("update_constraints").requirements(project)]


def test_every_dependency_has_one_exact_version_that_fits(project: dict[str, Any]) -> None:
    exact = pinned(project)
    for requirement in asked_for(project):
        versions = exact.get(canonicalize_name(requirement.name))
        assert versions, f"{requirement.name} is not pinned: run scripts/update_constraints.py"
        for version in versions:
            assert re.fullmatch(r"==[^*]+", str(version.specifier))
            assert requirement.specifier.contains(str(version.specifier)[2:])


def test_what_the_dependencies_need_is_pinned_too(project: dict[str, Any]) -> None:
    exact = pinned(project)
    overridden = pinned(project, "override-dependencies")
    waiting = asked_for(project)
    seen: set[tuple[str, str]] = set()
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if not all(is_wanted(override) for override in overridden.get(name, ())):
            continue
        for extra in ("", *asked.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                assert name in exact, f"{name} is not pinned: run scripts/update_constraints.py"
                waiting += needs(name, extra)
    assert len(seen) > len(asked_for(project))


def needs(name: str, extra: str) -> list[Requirement]:
    """What an installed distribution needs here."""
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:  # of a group that is not installed
        return []
    return [need for need in map(Requirement, lines) if is_wanted(need, extra)]


def is_wanted(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def test_the_build_is_pinned(project: dict[str, Any]) -> None:
    exact = pinned(project, "build-constraint-dependencies")
    assert {canonicalize_name(line) for line in project["build-system"]["requires"]} <= set(exact)


def test_torch_is_not_pulled(project: dict[str, Any]) -> None:
    assert "torch" not in pinned(project)


def test_no_package_index_is_named(project: dict[str, Any]) -> None:
    assert not {"index", "index-url", "extra-index-url", "find-links"} & set(project["tool"]["uv"])
    assert "uv.lock" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_constraints_script_replaces_one_list() -> None:
    with_list = script("update_constraints").with_list
    before = 'a = 1\nkey = [\n    "old==1",\n]\nother = [\n    "kept==1",\n]\n'
    assert with_list(before, "key", ["new==2"]) == before.replace("old==1", "new==2")
    with pytest.raises(SystemExit):
        with_list("key = []\n", "key", [])


def test_the_wheel_carries_the_packages(project: dict[str, Any]) -> None:
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["gateway", "router", "parsers", "simulator", "fabric", "loadtests"]
    assert project["tool"]["mypy"]["packages"] == packages
    assert project["project"]["scripts"] == {"kvgateway": "gateway.cli:main"}


def test_the_operations_page_lists_every_setting() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    table = script("settings_table")
    assert table.with_tables(page) == page, "run scripts/settings_table.py"
    for field in settings_fields().values():
        assert f"`{field.key if field.in_file_only else field.env}`" in page


def test_the_table_of_fields_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert script("fields_table").with_tables(page) == page, "run scripts/fields_table.py"


def test_every_variable_in_the_project_is_a_setting_or_listed_as_none() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for name in OTHER_ENV:
        assert f"`{name}`" in page
    known = OTHER_ENV | {field.env for field in settings_fields().values()}
    own_tests = ROOT / "tests" / "gateway" / "test_config.py"  # of wrong names too
    folders = (
        "gateway",
        "router",
        "parsers",
        "simulator",
        "fabric",
        "loadtests",
        "scripts",
        "deploy",
        "tests",
    )
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".sh", ".yaml", ".toml") and path != own_tests:
            for name in re.findall(r"\bKVGATEWAY_[A-Z0-9_]*[A-Z0-9]\b", path.read_text()):
                assert name in known, f"{path.relative_to(ROOT)} uses {name}, which OTHER_ENV lacks"


def test_the_changelog_has_the_version(project: dict[str, Any]) -> None:
    assert f"## {project['project']['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_test_command_covers_all_but_the_live_tests(project: dict[str, Any]) -> None:
    paths = project["tool"]["pytest"]["ini_options"]["testpaths"]
    holders = {path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").rglob("test_*.py")}
    folders = {name for name in holders if not name.endswith(".py")}
    assert set(paths) == {"tests/test_*.py"} | {f"tests/{name}" for name in folders - {"live"}}


def test_the_readme_gives_the_commands_that_ci_runs() -> None:
    readme, ci = ((ROOT / name).read_text() for name in ("README.md", ".ci/run"))
    for command in ("uv run kvgateway demo", "uv run pytest"):
        assert command in readme
        assert command in ci


def test_the_image_serves_on_the_default_ports() -> None:
    text = (ROOT / "Dockerfile").read_text()
    fields = settings_fields()
    assert f"EXPOSE {fields['port'].default} {fields['admin_port'].default}" in text
    for name in re.findall(r"KVGATEWAY_\w+", text):
        assert name in {field.env for field in fields.values()}
    assert re.search(r"^USER (?!root|0)", text, re.MULTILINE)
    assert "HEALTHCHECK" in text
