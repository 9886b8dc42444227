"""Child processes of load and live tests: in a group of their own, waited for with a limit, ended by id."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOG_TAIL_LINES = 40
PROJECT_ENV = "KVGATEWAY_"
QUIET = range(20_000, 32_000)
"""Below the range from which the system gives ports to whoever asks, and to outgoing connections."""


class ProcessFailedError(AssertionError):
    """Something did not happen in time; the text carries the end of the log."""


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


def quiet_ports(count: int) -> list[int]:
    """Ports that nobody has and that the system gives to nobody, all different."""
    ports: list[int] = []
    for port in random.sample(QUIET, len(QUIET)):
        if len(ports) == count:
            break
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
    return ports


def wait_until(what: str, check: Callable[[], object], seconds: float, every: float = 0.2) -> None:
    """Poll `check` until it is true; past `seconds` a ProcessFailedError names `what` and the last answer."""
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        if time.monotonic() > deadline:
            raise ProcessFailedError(f"not within {seconds:.0f} s: {what} (last answer: {answer!r})")
        time.sleep(every)


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    """The command on one core, where there are several and `taskset` is there."""
    if core is None or len(os.sched_getaffinity(0)) < 2 or shutil.which("taskset") is None:
        return list(command)
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[core % len(cores)]), *command]


class Child:
    """One process group of ours. `start` may be called again after the group ended."""

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        """`env` is added to this process's environment less the gateway's own settings."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(PROJECT_ENV)}
        self.name = name
        self.command = list(command)
        self.env = {**inherited, **env}
        self.cwd = cwd
        self.log = log
        self._popen: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"Child({self.name}, pid={self._popen and self._popen.pid}, alive={self.alive})"

    @property
    def pid(self) -> int:
        assert self._popen is not None, f"{self.name} was not started"
        return self._popen.pid

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
        return f"--- end of {self.log} ---\n" + "\n".join(self._lines()[-LOG_TAIL_LINES:])

    def last_line(self) -> str:
        """The last words in the log."""
        return next((line for line in reversed(self._lines()) if line.strip()), "it logged nothing")

    def _lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def wait_ready(self, check: Callable[[], object], seconds: float) -> None:
        """Wait for `check`; a child that ends meanwhile, or takes too long, fails with its log."""
        try:
            wait_until(f"{self.name} answers", lambda: check() or not self.alive, seconds)
        except ProcessFailedError as error:
            raise ProcessFailedError(f"{error}\n{self.tail()}") from None
        if not self.alive:
            code = self._popen.returncode if self._popen else None
            raise ProcessFailedError(f"{self.name} ended with {code} while starting\n{self.tail()}")

    def kill(self) -> None:
        """SIGKILL to the whole group, as a node failure would; returns when the leader is gone."""
        self._signal_group(signal.SIGKILL, 10.0)

    def stop(self, seconds: float = 10.0) -> None:
        """SIGTERM, then SIGKILL for what is left of the group."""
        if self.alive:
            self._signal_group(signal.SIGTERM, seconds)
        self._signal_group(signal.SIGKILL, 10.0)

    def _signal_group(self, sig: signal.Signals, seconds: float) -> None:
        if self._popen is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, sig)
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            if sig is signal.SIGKILL:
                raise
