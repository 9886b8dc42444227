"""`python -m loadtests.index [--repetitions N]`: what the scorecard measures of the index, and memory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtests.index.bench import Bench
from loadtests.index.child import Order
from loadtests.index.entries import INDEX_ENTRIES, run_index
from loadtests.peers import peers_dir
from loadtests.scorecard.entries import DYNAMO, OURS
from loadtests.scorecard.evaluate import exit_code
from loadtests.scorecard.servers import AbsentError

ENTRIES = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="loadtests.index", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args(arguments)
    peers = peers_dir()
    measurements = run_index(INDEX_ENTRIES, options.repetitions, peers)
    for each in measurements:
        print(f"{each.name}: {each.value} (at most {each.target}): {each.how}")
    print(memory(peers))
    return exit_code(measurements)


def memory(peers: Path) -> str:
    """Resident bytes for each entry, each index in a process that has done nothing else."""
    try:
        with Bench(peers) as bench:
            spent = {
                name: bench.ask(name, Order("memory", 64, blocks=ENTRIES, per_event=128)).bytes_per_entry
                for name in (OURS, DYNAMO)
            }
    except AbsentError as reason:
        return str(reason)
    figures = ", ".join(f"{name} {bytes_:.0f}" for name, bytes_ in spent.items())
    return f"bytes for each of {ENTRIES} (worker, block) entries: {figures}"


if __name__ == "__main__":
    sys.exit(main())
