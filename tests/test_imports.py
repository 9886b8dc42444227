"""The arrows between the packages (docs/architecture.md), read from the source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gateway", "router", "parsers", "simulator", "fabric", "loadtests")

MAY_IMPORT = {
    "parsers": {"parsers"},
    "router": {"router"},
    "fabric": {"fabric"},
    "gateway": {"gateway", "router", "parsers", "fabric"},
    "simulator": {"simulator", "parsers", "fabric"},
    "loadtests": set(PACKAGES),
}
# Where the commands start: these alone of the gateway may reach the simulator and the load tests.
COMMANDS = ("gateway/cli.py", "gateway/demo/")

OUTSIDE_WORLD = {
    "aiohttp",
    "asyncio",
    "concurrent",
    "datetime",
    "httptools",
    "multiprocessing",
    "selectors",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "uvloop",
    "zmq",
}
IMPURE = ("router/feed.py",)

FORMAT_NAME = "kimi"
FORMAT_OWNERS = ("gateway/demo/",)


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Absolute names of what a module imports, by statement or by a literal name at run time."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and name_of(node.func) in (
            "import_module",
            "find_spec",
            "__import__",
        ):
            yield from (argument.value for argument in node.args[:1] if is_text(argument))


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def words(tree: ast.AST) -> Iterator[str]:
    """Names and texts in the code of a module; its docstrings are prose."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in prose:
            continue
        for field in ("id", "attr", "name", "arg", "asname", "module", "value"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield value


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_arrows(package: str) -> None:
    wrong = []
    for path in sources(package):
        allowed = set(PACKAGES) if relative(path).startswith(COMMANDS) else MAY_IMPORT[package]
        for module in imported_modules(ast.parse(path.read_text())):
            top = module.partition(".")[0]
            if top == "tests" or (top in PACKAGES and top not in allowed):
                wrong.append(f"{relative(path)} imports {module}")
    assert wrong == []


@pytest.mark.parametrize("package", ["parsers", "router"])
def test_pure_packages_touch_no_io_and_no_clock(package: str) -> None:
    wrong = [
        f"{relative(path)} imports {module}"
        for path in sources(package)
        if not relative(path).startswith(IMPURE)
        for module in imported_modules(ast.parse(path.read_text()))
        if module.partition(".")[0] in OUTSIDE_WORLD
    ]
    assert wrong == []


def test_no_model_is_named_outside_its_own_folder() -> None:
    wrong = [
        f"{relative(path)}: {word!r}"
        for path in sources("gateway", "router")
        if not relative(path).startswith(FORMAT_OWNERS)
        for word in words(ast.parse(path.read_text()))
        if FORMAT_NAME in word.lower()
    ]
    assert wrong == []


SAMPLE = '''
"""Prose names kimi."""
import router.load
from parsers import base
from . import sibling
import importlib
importlib.import_module("simulator")
def kimi_function(kimi_argument): "prose about kimi"
value = "a kimi text"
'''


def test_the_reader_sees_every_kind_of_import() -> None:
    found = set(imported_modules(ast.parse(SAMPLE)))
    assert found == {"router.load", "parsers", "parsers.base", "importlib", "simulator"}


def test_the_reader_tells_code_from_prose() -> None:
    named = [word for word in words(ast.parse(SAMPLE)) if FORMAT_NAME in word]
    assert sorted(named) == ["a kimi text", "kimi_argument", "kimi_function"]
