"""`python -m loadtests.chaos [--seconds N]`: the soak. Prints a JSON object; exit status 0 when all holds."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from loadtests.chaos.soak import Soak


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="loadtests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the load lasts (default 600)")
    parser.add_argument("--concurrent", type=int, default=64, help="users (default 64)")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two faults (default 20)")
    parser.add_argument("--transport", default="inline", help="of KV blocks: inline or nixl (default inline)")
    parser.add_argument("--logs", type=Path, help="keep the processes' logs in this directory")
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="kvgateway-soak-") as scratch:
        folder = options.logs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        soak = Soak(folder, options.concurrent, options.every, options.transport)
        report = asyncio.run(soak.run(options.seconds))
    shown = {**msgspec.to_builtins(report), "continued_share": report.continued_share, "holds": report.holds}
    print(msgspec.json.encode(shown).decode())
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
