"""Child processes: started, watched, and ended by their own ids, every one of them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
POLL_SECONDS = 0.02
WATCH_SECONDS = 0.2
TAIL_LINES = 15
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""

_libc = ctypes.CDLL(None)


class Child(msgspec.Struct, frozen=True):
    """One started process; what it writes goes to `log`."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def text(self) -> str:
        """All that it wrote."""
        return self.log.read_text(errors="replace")

    def obituary(self) -> str:
        """How it ended and its last lines."""
        lines = self.text().splitlines()[-TAIL_LINES:]
        return "\n".join([f"{self.name} ended with code {self.process.returncode}:", *lines])


class Processes:
    """The children of one demo. Use as an async context: leaving it leaves none of them."""

    def __init__(self, folder: Path) -> None:
        self.children: list[Child] = []
        self.folder = folder

    async def __aenter__(self) -> Processes:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        """Run `python -m module`, in a session of its own: a terminal's Ctrl-C reaches only this process."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def first_dead(self) -> Child | None:
        """A child that ended by itself, if there is one."""
        return next((child for child in self.children if not child.alive()), None)

    async def wait_for_a_death(self) -> Child:
        """The first child that ends by itself."""
        dead = None
        while dead is None:
            await asyncio.sleep(WATCH_SECONDS)
            dead = self.first_dead()
        return dead

    async def stop(self) -> None:
        """End all of them: politely, then not. Returns when every one is gone."""
        _signal(self.children, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + GRACE_SECONDS
        while any(child.alive() for child in self.children):
            if asyncio.get_running_loop().time() >= deadline:
                _signal(self.children, signal.SIGKILL)
            await asyncio.sleep(POLL_SECONDS)


def _signal(children: Sequence[Child], number: signal.Signals) -> None:
    for child in children:
        if child.alive():
            child.process.send_signal(number)


def _environment() -> dict[str, str]:
    """This process's, without settings that were meant for another gateway."""
    return {key: value for key, value in os.environ.items() if not key.startswith("KVGATEWAY_")}


def _end_with_parent() -> None:
    """In the child: a demo that is killed outright takes its children along, where the system can do that."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
