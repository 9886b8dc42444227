"""Finding NIXL, whichever of its packages is installed."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from fabric.ucx import UcxReport

MODULES = ("nixl._api", "nixl_cu13._api", "nixl_cu12._api")


class NixlMissingError(Exception):
    """No NIXL package can be imported."""


class Runtime(NamedTuple):
    """NIXL in this process."""

    api: Any
    report: UcxReport


@cache
def load() -> Runtime:
    """Import NIXL, once. Raises NixlMissingError."""
    report = UcxReport()
    for name in MODULES:
        with report.variables():
            module = _import(name)
        if module is not None:
            _quieten()
            return Runtime(module, report)
    raise NixlMissingError(f"NIXL is not installed: none of {', '.join(MODULES)} can be imported")


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _quieten() -> None:
    """NIXL prints each agent and backend at level INFO, through handlers of its own."""
    for name in list(logging.root.manager.loggerDict):
        if "nixl" in name:
            logging.getLogger(name).setLevel(logging.ERROR)
