"""Python loads this in each process of a worker: manners for one that shares a few cores with others.

vLLM is made for a machine of its own. On two cores, what it does to save microseconds starves the other
worker of a pair, for ten seconds at a time:
- processes that wait for each other spin on `sched_yield`; here they sleep for a moment instead;
- NIXL's connector moves each worker's main thread to the machine's last core, so that two workers share one;
- NIXL's progress thread polls without a pause, for its Python API sets that to 0 and lets nobody else set it.
Nothing that a worker computes or sends depends on any of it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

API = "nixl_cu12._api"
NIXL_PAUSE_MICROSECONDS = 1000
YIELD_SECONDS = 0.0002


class _Finder(MetaPathFinder):
    """Finds the API as usual, to change it once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != API:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            _pause(module.nixlBind.nixlAgentConfig)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def _pause(config: Any) -> None:
    own = config.pthrDelay
    config.pthrDelay = property(own.fget, lambda self, _: own.fset(self, NIXL_PAUSE_MICROSECONDS))


sys.meta_path.insert(0, _Finder())
os.sched_yield = lambda: time.sleep(YIELD_SECONDS)
os.sched_setaffinity = lambda _pid, _cores: None
