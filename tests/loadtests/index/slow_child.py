"""Our side of the index benchmark, with work added to each look-up and each event."""

from __future__ import annotations

import sys
import time
from typing import Any

from loadtests.index.child import serve
from loadtests.index.subjects import Kvgateway

SLOWER = float(sys.argv[1])
"""Times."""


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


class Slow(Kvgateway):
    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        fast = self.find

        def find(prompt: Any) -> Any:
            began = time.process_time()
            found = fast(prompt)
            burn((time.process_time() - began) * SLOWER)
            return found

        self.find = find

    def store(self, worker: int, payload: bytes) -> None:
        began = time.process_time()
        super().store(worker, payload)
        burn((time.process_time() - began) * SLOWER)


serve(Slow)
