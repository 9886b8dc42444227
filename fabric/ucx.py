"""Which transport UCX chose for a READ.

NIXL does not tell and counts alike on every path, but UCX prints the protocols of each connection when asked
to. The rows of the table for remote reads are `range | description | config`, for example `0..inf | zero-copy
| cma/memory` between processes of one host, or `software emulation | tcp/lo` for the slow one. UCX buffers
its log, so it has to be flushed before it is read.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READ_TABLE = "remote memory read by ucp_get"
UNKNOWN = "unknown"


class UcxReport:
    """The log of this process's UCX."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ucx-")
        self._path = Path(self._folder.name) / "log"
        self._wanted = {"UCX_LOG_FILE": str(self._path), "UCX_PROTO_INFO": "y"}

    @contextmanager
    def variables(self) -> Iterator[None]:
        """UCX's variables are set while its libraries are loaded, and no child process inherits them.

        A user who has set one of them gets his own log, and this one stays empty.
        """
        if any(name in os.environ for name in self._wanted):
            yield
            return
        os.environ.update(self._wanted)
        try:
            yield
        finally:
            for name in self._wanted:
                os.environ.pop(name, None)

    def read_path(self) -> str:
        """How this process's last new connection reads, `cma/memory (zero-copy)`; "unknown" before a read."""
        ctypes.CDLL(None).fflush(None)
        try:
            return parse_read_path(self._path.read_text(errors="replace"))
        except OSError:
            return UNKNOWN


def parse_read_path(log: str) -> str:
    """The config and description of the largest reads in the last table for them."""
    found, in_table = UNKNOWN, False
    for line in log.splitlines():
        _, bar, rest = line.partition("| ")
        if not bar:
            continue
        cells = [cell.strip() for cell in rest.rstrip().rstrip("|").split("|")]
        if len(cells) == 1 and not cells[0].startswith(("+", "-")):
            # A title is two lines: the connection, then the operation.
            in_table = READ_TABLE in cells[0]
        elif in_table and len(cells) == 3 and cells[0].endswith("..inf"):
            found = f"{cells[2]} ({cells[1]})"
    return found
