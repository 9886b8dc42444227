"""Both indexes, each in its own process and environment, asked in turns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from loadtests.index.child import Answer, Order
from loadtests.processes import pinned
from loadtests.scorecard.bench import MEASURED_CORE
from loadtests.scorecard.entries import DYNAMO, OURS
from loadtests.scorecard.servers import ROOT, AbsentError

CHILD = ("-m", "loadtests.index.child")
OUR_COMMAND = (sys.executable, *CHILD, OURS)


class Bench:
    """Starts both; everything it started ends with the `with` block."""

    def __init__(self, peers: Path, ours: Sequence[str] = OUR_COMMAND) -> None:
        """`ours` may be another command for our side. Raises AbsentError without Dynamo."""
        python = peers / "dynamo/bin/python"
        if not python.exists():
            raise AbsentError(f"no {python} (loadtests/peers/setup.sh makes it)")
        self._commands: Mapping[str, Sequence[str]] = {OURS: ours, DYNAMO: (str(python), *CHILD, DYNAMO)}
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Bench:
        for name, command in self._commands.items():
            self._children[name] = subprocess.Popen(
                pinned(command, MEASURED_CORE),
                env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for child in self._children.values():
            child.kill()
            child.wait()

    def ask(self, name: str, order: Order) -> Answer:
        """Raises AbsentError when the index fails or finds what it should not."""
        child = self._children[name]
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(msgspec.json.encode(order) + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
            answer = msgspec.json.decode(line, type=Answer)
        except (OSError, msgspec.DecodeError) as failure:
            raise AbsentError(f"{name} failed in {order.do}: {failure}") from None
        if answer.wrong:
            raise AbsentError(f"{name} is wrong in {order.do}: {answer.wrong}")
        return answer
