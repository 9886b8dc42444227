"""One run: the mock worker, the servers under test, and the load driver between them.

The measured servers share one core, the mock worker and the driver the other, so that neither takes the
other's time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from loadtests.processes import Child, ProcessFailedError, free_ports, pinned
from loadtests.scorecard.entries import OURS, REQUESTS, Phase
from loadtests.scorecard.evaluate import Sample
from loadtests.scorecard.servers import AbsentError, Site, Wrap, launch

MEASURED_CORE, OTHER_CORE = 0, 1
READY_SECONDS = 90.0
PHASE_SECONDS = 60


class _Driven(msgspec.Struct):
    """The driver's answer, as far as it is used."""

    n: int
    errors: int
    gw_cpu_us_req: float
    lat_p50_us: float
    ttft_p50_us: float


class Bench:
    """Starts what is asked for and measures it; everything it started ends with the `with` block."""

    def __init__(
        self, peers: Path, work: Path, ours: Wrap = lambda launch: launch, measured: Collection[str] = (OURS,)
    ) -> None:
        """`ours` may change how the `measured` servers are started. Raises AbsentError without the tools."""
        for tool in ("mock_worker", "load_driver"):
            if not (peers / "bin" / tool).exists():
                raise AbsentError(f"no {peers / 'bin' / tool} (loadtests/peers/setup.sh makes it)")
        (port,) = free_ports(1)
        self._site = Site(peers, work, f"127.0.0.1:{port}")
        self._ours = ours
        self._measured = measured
        self._children: list[Child] = []
        self._servers: dict[tuple[str, bool], tuple[int, Child]] = {}
        self._spawn("mock-worker", [str(peers / "bin/mock_worker"), str(port)], {}, OTHER_CORE)

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            child.stop()

    def start(self, server: str, paced: bool) -> None:
        """Start a server for phases of one pace, and its helpers. Raises AbsentError when it cannot."""
        plan = launch(server, self._site, paced)
        plan = self._ours(plan) if server in self._measured else plan
        name = f"{server}-{'paced' if paced else 'fast'}"
        for number, helper in enumerate(plan.helpers):
            self._spawn(f"{name}-helper{number}", helper, plan.env, OTHER_CORE)
        child = self._spawn(name, plan.command, plan.env, MEASURED_CORE)
        self._servers[server, paced] = (plan.port, child)

    def wait_ready(self, server: str, paced: bool) -> None:
        """Until the server answers a request. Raises AbsentError when it does not."""
        port, child = self._servers[server, paced]
        body = json.dumps(REQUESTS.body()).encode()
        try:
            child.wait_ready(lambda: _answers(port, body), READY_SECONDS)
        except ProcessFailedError as failure:
            print(failure, file=sys.stderr)
            raise AbsentError(f"did not get ready: {child.last_line()}") from None

    def measure(self, server: str, phase: Phase, requests: int) -> Sample:
        """Raises AbsentError when a request failed: what failed cheaply is no measurement."""
        port, child = self._servers[server, phase.step_ms > 0]
        driven = self._drive(phase, port, child.pid, requests)
        # The driver may count the last few of the warm-up's batch with it, never more than one a connection.
        if driven.errors or driven.n <= requests - phase.concurrency:
            raise AbsentError(
                f"{driven.n} of {requests} requests done, {driven.errors} errors in {phase.name}"
            )
        return Sample(
            cpu_us_per_request=driven.gw_cpu_us_req,
            cpu_us_per_token=driven.gw_cpu_us_req / phase.max_tokens,
            first_token_us=driven.ttft_p50_us or driven.lat_p50_us,
        )

    def _drive(self, phase: Phase, port: int, pid: int, requests: int) -> _Driven:
        body = self._site.work / f"{phase.name}.json"
        body.write_text(json.dumps(phase.body()))
        options = {"p": port, "P": pid, "c": phase.concurrency, "n": requests, "w": phase.warmup}
        command = [str(self._site.peers / "bin/load_driver"), "-b", str(body), "-t", str(PHASE_SECONDS)]
        for name, value in options.items():
            command += [f"-{name}", str(value)]
        try:
            done = subprocess.run(
                pinned(command, OTHER_CORE), capture_output=True, check=True, timeout=PHASE_SECONDS + 30
            )
            return msgspec.json.decode(done.stdout, type=_Driven)
        except (subprocess.SubprocessError, msgspec.DecodeError) as error:
            raise AbsentError(f"the load driver failed in {phase.name}: {error}") from None

    def _spawn(self, name: str, command: Sequence[str], env: Mapping[str, str], core: int) -> Child:
        work = self._site.work
        child = Child(name, pinned(command, core), env, work, work / f"{name}.log")
        self._children.append(child)
        child.start()
        return child


def _answers(port: int, body: bytes) -> bool:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
