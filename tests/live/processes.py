"""Child processes of the live lane: started in their own group, waited for with a limit, ended by their own id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOG_TAIL_LINES = 40


class LiveFailure(AssertionError):
    """A step of the live lane did not happen in time; the text carries the end of the log."""


def free_ports(count: int) -> list[int]:
    """Ports that the system just gave out, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def wait_until(what: str, check: Callable[[], object], seconds: float, every: float = 0.2) -> None:
    """Poll `check` until it is true; past `seconds` a LiveFailure names `what` and the last answer."""
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        if time.monotonic() > deadline:
            raise LiveFailure(f"not within {seconds:.0f} s: {what} (last answer: {answer!r})")
        time.sleep(every)


class Child:
    """One process group of ours. `start` may be called again after the group ended."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.name = name
        self.command = list(command)
        self.env = {**os.environ, **env}
        self.cwd = cwd
        self.log = log
        self._popen: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"Child({self.name}, pid={self.pid}, alive={self.alive})"

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen else None

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        assert not self.alive, f"{self.name} already runs"
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self.command,
                env=self.env,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def tail(self) -> str:
        """The end of the log, for a failure text."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return f"--- end of {self.log} ---\n" + "\n".join(lines[-LOG_TAIL_LINES:])

    def wait_ready(self, check: Callable[[], object], seconds: float) -> None:
        """Wait for `check`; a child that ends meanwhile, or takes too long, fails with its log."""
        try:
            wait_until(f"{self.name} answers", lambda: check() or not self.alive, seconds)
        except LiveFailure as error:
            raise LiveFailure(f"{error}\n{self.tail()}") from None
        if not self.alive:
            assert self._popen is not None
            raise LiveFailure(f"{self.name} ended with {self._popen.returncode} while starting\n{self.tail()}")

    def kill(self) -> None:
        """SIGKILL to the whole group, as a node failure would; returns when the leader is gone."""
        self._signal_group(signal.SIGKILL)

    def stop(self, seconds: float = 10.0) -> None:
        """SIGTERM, then SIGKILL for what is left of the group."""
        if self.alive:
            self._signal_group(signal.SIGTERM, seconds)
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, sig: signal.Signals, seconds: float = 10.0) -> None:
        if self._popen is None:
            return
        try:
            os.killpg(self._popen.pid, sig)
        except ProcessLookupError:
            pass
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            if sig is signal.SIGKILL:
                raise
