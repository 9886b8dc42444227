"""Finding NIXL, doing without it, and reading UCX's log."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from fabric import nixl as api
from fabric.ucx import UNKNOWN, parse_read_path
from simulator import cli

load_afresh = api.load.__wrapped__


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        (("nixl._api", "nixl_cu13._api", "nixl_cu12._api"), "nixl._api"),
        (("nixl_cu13._api", "nixl_cu12._api"), "nixl_cu13._api"),
        (("nixl_cu12._api",), "nixl_cu12._api"),
    ],
)
def test_the_first_package_that_is_there(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], chosen: str
) -> None:
    _install(monkeypatch, installed)
    assert load_afresh().api.name == chosen


def test_without_any_a_worker_that_needs_it_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _install(monkeypatch, ())
    with pytest.raises(api.NixlMissingError, match=r"nixl_cu12\._api"):
        load_afresh()
    monkeypatch.setattr(cli, "load", load_afresh)
    for arguments in (["--role", "prefill"], ["--role", "decode"], ["--transport", "nixl"]):
        assert cli.main(arguments) == 2
        assert "--transport inline" in capsys.readouterr().err


def _install(monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...]) -> None:
    real = importlib.import_module

    def stub(name: str, package: str | None = None) -> Any:
        if name not in api.MODULES:
            return real(name, package)
        if name not in installed:
            raise ImportError(name)
        return SimpleNamespace(name=name)

    monkeypatch.setattr(importlib, "import_module", stub)


def _log(*tables: tuple[str, tuple[str, ...]]) -> str:
    """Tables as UCX prints them: a connection, an operation, then its rows."""
    lines: list[str] = []
    for operation, rows in tables:
        lines += (
            "+---+---+",
            "| D intra-node cfg#1 |",
            f"| {operation} |",
            "| Range | Description | Config |",
        )
        lines += (f"| {row} |" for row in rows)
    return "\n".join(f"[1700000000.000001] [host:1 :0]   {line}" for line in lines)


READ = "remote memory read by ucp_get*(multi) into host memory from host"


@pytest.mark.parametrize(
    ("log", "path"),
    [
        ("", UNKNOWN),
        (
            _log(("active message by ucp_am_send* from host memory", ("0..inf | zero-copy | tcp/lo",))),
            UNKNOWN,
        ),
        (_log((READ, ("0..inf | zero-copy   | cma/memory",))), "cma/memory (zero-copy)"),
        (_log((READ, ("0..inf | software emulation | tcp/lo",))), "tcp/lo (software emulation)"),
        (
            _log((READ, ("0..8K | short | tcp/lo", "8193..inf | zero-copy | rc_mlx5/mlx5_0:1"))),
            "rc_mlx5/mlx5_0:1 (zero-copy)",
        ),
        (
            _log(
                (READ, ("0..inf | zero-copy | cma/memory",)),
                (READ, ("0..inf | software emulation | tcp/lo",)),
            ),
            "tcp/lo (software emulation)",
        ),
    ],
)
def test_the_path_of_large_reads_in_the_last_table(log: str, path: str) -> None:
    assert parse_read_path(log) == path
