"""`python -m loadtests.gpu.torch_copy FROM TO`, in an environment with torch: its copies between two GPUs.

The yardstick for a probe in the same run. On one GPU a copy reads and writes the same memory. Each piece of a
scattered copy is a copy of its own, and the pieces are as far apart as they are long.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from typing import Any

KIB, MIB = 1024, 1024 * 1024
SHAPES = ((1, 64 * KIB), (1, MIB), (1, 16 * MIB), (1, 256 * MIB), (4096, 64 * KIB), (1024, 576 * KIB))
"""Pieces and bytes of each."""
REPETITIONS = 7


def main() -> int:
    torch: Any = importlib.import_module("torch")
    source, target = (f"cuda:{number}" for number in sys.argv[1:3])
    size = 2 * max(pieces * nbytes for pieces, nbytes in SHAPES)
    theirs = torch.randint(0, 255, (size,), dtype=torch.uint8, device=source)
    ours = torch.zeros_like(theirs, device=target)

    def wait() -> None:
        for device in (source, target):
            torch.cuda.synchronize(device)

    for pieces, nbytes in SHAPES:
        starts = range(0, 2 * pieces * nbytes, 2 * nbytes)
        pairs = [(ours[at : at + nbytes], theirs[at : at + nbytes]) for at in starts]
        times = []
        for _ in range(REPETITIONS):
            wait()
            began = time.perf_counter()
            for our, their in pairs:
                our.copy_(their)
            wait()
            times.append(time.perf_counter() - began)
        seconds = statistics.median(times[1:])
        print(
            json.dumps(
                {
                    "from": source,
                    "to": target,
                    "pieces": pieces,
                    "piece_kib": nbytes // KIB,
                    "gb_a_second": round(pieces * nbytes / seconds / 1e9, 2),
                    "us_a_piece": round(seconds / pieces * 1e6, 2),
                }
            ),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
