"""`python -m loadtests.scorecard [NAME ...] [--quick|--full]`: one JSON line a measurement on stdout.

Exit status: 0 all hold, 1 some do not, 2 wrong command line, 3 some could not be measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from loadtests.index.entries import INDEX_ENTRIES, run_index
from loadtests.peers import peers_dir
from loadtests.scorecard.entries import ENTRIES
from loadtests.scorecard.evaluate import exit_code
from loadtests.scorecard.run import FULL, QUICK, run_scorecard
from loadtests.scorecard.text import TEXT_ENTRIES, run_text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    names = [entry.name for entries in (ENTRIES, TEXT_ENTRIES, INDEX_ENTRIES) for entry in entries]
    if unknown := [name for name in options.names if name not in names]:
        parser.error(f"no entry {', '.join(unknown)}; there are {', '.join(names)}")
    if options.list:
        for entry in ENTRIES:
            print(f"{entry.name}: {entry.quantity} at most {entry.target} x {entry.peer}, {entry.phase.what}")
        for text in TEXT_ENTRIES:
            print(f"{text.name}: CPU at most {text.target} x {text.peer}, {text.what}")
        for index in INDEX_ENTRIES:
            print(f"{index.name}: CPU at most {index.target} x {index.peer}, {index.what}")
        return 0
    effort = FULL if options.full else QUICK
    served = [entry for entry in ENTRIES if not options.names or entry.name in options.names]
    texts = [text for text in TEXT_ENTRIES if not options.names or text.name in options.names]
    measurements = run_scorecard(served, effort, peers_dir()) if served else []
    measurements += run_text(texts, effort.repetitions) if texts else []
    indexes = [index for index in INDEX_ENTRIES if not options.names or index.name in options.names]
    measurements += run_index(indexes, effort.repetitions, peers_dir()) if indexes else []
    for measurement in measurements:
        print(msgspec.json.encode(measurement).decode())
    return exit_code(measurements)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loadtests.scorecard", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries to measure; all when none is named")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help=f"{QUICK.repetitions} repetitions (the default)")
    effort.add_argument("--full", action="store_true", help=f"{FULL.repetitions} repetitions")
    parser.add_argument("--list", action="store_true", help="say what each entry means and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
