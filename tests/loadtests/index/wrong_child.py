"""Our side of the index benchmark, fast and wrong: it finds nothing."""

from __future__ import annotations

from typing import Any

from loadtests.index.child import serve
from loadtests.index.subjects import Kvgateway


class Wrong(Kvgateway):
    def depths(self, found: Any) -> dict[int, int]:
        return {}


serve(Wrong)
