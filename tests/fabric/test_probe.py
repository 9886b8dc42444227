"""Probes as processes with real NIXL between them: shared memory, sockets, namespaces, deaths."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from fabric.nixl import NixlMissingError, load
from fabric.results import LinksFile
from gateway.handoff.measured import read_links
from tests.namespaces import ip, remove, why_not

START_SECONDS = 60.0
COMMAND = [sys.executable, "-m", "gateway.cli", "fabric-probe"]
SMALL = ("--mebibytes", "32")


def environment(tls: str | None) -> dict[str, str]:
    return dict(os.environ) if tls is None else {**os.environ, "UCX_TLS": tls}


class Probe:
    """`kvgateway fabric-probe serve`, ready."""

    def __init__(self, *arguments: str, tls: str | None = None, prefix: Sequence[str] = ()) -> None:
        command = [*prefix, *COMMAND, "serve", "--host", "127.0.0.1", "--port", "0", *SMALL, *arguments]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(tls))
        assert self.popen.stdout is not None
        ready = re.search(r" on (\S+:\d+)$", self.popen.stdout.readline())
        assert ready is not None
        self.address = ready[1]

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def stop(self) -> None:
        self.popen.kill()
        self.popen.wait()


Start = Callable[..., Probe]


@pytest.fixture
def start() -> Iterator[Start]:
    try:
        load()
    except NixlMissingError as error:
        pytest.skip(str(error))  # it has no build for every machine, and the project runs without it
    probes: list[Probe] = []

    def one(*arguments: str, **options: object) -> Probe:
        probes.append(Probe(*arguments, **options))  # type: ignore[arg-type]
        return probes[-1]

    yield one
    for probe in probes:
        probe.signal(signal.SIGCONT)
        probe.stop()


def measured(prefill: str, decode: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "run", "--prefill", f"p={prefill}", "--decode", f"d={decode}", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(("tls", "transport"), [(None, "cma"), ("tcp,self", "tcp")], ids=["shm", "tcp"])
def test_a_pair_is_measured_and_the_gateway_reads_the_result(
    start: Start, tmp_path: Path, tls: str | None, transport: str
) -> None:
    prefill, decode = start(tls=tls), start(tls=tls)
    output = tmp_path / "links.json"
    done = measured(prefill.address, decode.address, "--output", str(output))
    assert done.returncode == 0, done.stderr
    link = msgspec.json.decode(output.read_bytes(), type=LinksFile).links[0]
    assert transport in link.transport
    assert link.memory == "DRAM"
    assert {(each.pieces, each.piece_bytes) for each in link.timings} == {
        (1, 65_536),
        (1, 1 << 20),
        (1, 16 << 20),
        (16, 65_536),
    }
    assert all(each.seconds > 0 for each in link.timings)
    assert f"p -> d: DRAM by {link.transport}" in done.stdout
    assert read_links(str(output))["p", "d"].bandwidth == link.bandwidth


def test_every_pair_is_measured_and_one_that_is_gone_does_not_stop_the_others(
    start: Start, tmp_path: Path
) -> None:
    prefill, decode = start(), start()
    output = tmp_path / "links.json"
    done = measured(prefill.address, decode.address, "--prefill", "gone=127.0.0.1:1", "--output", str(output))
    assert done.returncode == 1
    assert "gone -> d: 127.0.0.1:1: " in done.stderr
    assert list(read_links(str(output))) == [("p", "d")]


def test_a_peer_that_was_killed_is_an_error(start: Start) -> None:
    prefill, decode = start(), start()
    prefill.stop()
    done = measured(prefill.address, decode.address)
    assert done.returncode == 1
    assert prefill.address in done.stderr


def test_a_peer_that_dies_in_the_middle_is_an_error_and_the_probe_goes_on(start: Start) -> None:
    prefill, decode, other = (start(tls="tcp,self") for _ in range(3))
    command = [*COMMAND, "run", "--prefill", f"p={prefill.address}", "--decode", f"d={decode.address}"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(0.8)
    prefill.stop()
    _, told = running.communicate(timeout=60)
    # A fast machine may be done by then.
    assert running.returncode == 0 or "p -> d: " in told
    assert measured(other.address, decode.address).returncode == 0


def test_a_frozen_peer_is_an_error_within_the_bound(start: Start) -> None:
    prefill = start(tls="tcp,self")
    decode = start("--transfer-seconds", "1", tls="tcp,self")
    prefill.signal(signal.SIGSTOP)
    done = measured(prefill.address, decode.address, "--seconds", "20")
    assert done.returncode == 1
    assert "within" in done.stderr or "longer than 1 s" in done.stderr


def test_a_frozen_probe_is_an_error_within_the_bound(start: Start) -> None:
    prefill, decode = start(), start()
    decode.signal(signal.SIGSTOP)
    done = measured(prefill.address, decode.address, "--seconds", "1")
    assert done.returncode == 1
    assert "no answer within 1 s" in done.stderr


def test_without_nixl_a_probe_says_so(tmp_path: Path) -> None:
    for name in ("nixl", "nixl_cu12", "nixl_cu13"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*COMMAND, "serve", "--port", "0"], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert done.returncode == 2
    assert "NIXL is not installed here" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("start")
def test_memory_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()  # found before a driver that this machine may have
    done = subprocess.run(
        [*COMMAND, "serve", "--port", "0", "--memory", "vram"],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "no CUDA driver" in done.stderr


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a wire between them: 10.213.7.1 and 10.213.7.2."""
    names = (f"probe-{os.getpid()}-a", f"probe-{os.getpid()}-b")
    wires = (f"pa{os.getpid() % 100000}", f"pb{os.getpid() % 100000}")
    if reason := why_not():
        pytest.skip(reason)
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", wires[0], "type", "veth", "peer", "name", wires[1])
        for number, (name, wire) in enumerate(zip(names, wires, strict=True), 1):
            ip("link", "set", wire, "netns", name)
            ip("-n", name, "addr", "add", f"10.213.7.{number}/24", "dev", wire)
            ip("-n", name, "link", "set", wire, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            remove(name)


def test_a_pair_in_two_network_namespaces_is_measured_over_the_wire(
    start: Start, namespaces: tuple[str, str]
) -> None:
    probes = [
        start("--host", f"10.213.7.{number}", tls="tcp", prefix=("ip", "netns", "exec", name))
        for number, name in enumerate(namespaces, 1)
    ]
    command = ["ip", "netns", "exec", namespaces[0], *COMMAND, "run"]
    command += ["--prefill", f"p={probes[0].address}", "--decode", f"d={probes[1].address}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "p -> d: DRAM by tcp/p" in done.stdout
