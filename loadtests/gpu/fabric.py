"""`kvgateway fabric-probe` between two processes, beside torch's own copies, with settings of UCX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.gpu.record import Record
from loadtests.gpu.workers import ROOT
from loadtests.processes import Child, ProcessFailedError, free_ports

SETTINGS = ("", "^cuda_ipc", "cuda_ipc,cuda_copy,sm,tcp,self")
"""UCX_TLS; the first is UCX's own choice."""
MEBIBYTES = 256
SECONDS = 60


def torch_copies(python: str, gpus: Sequence[int], record: Record) -> None:
    """What torch's own copies reach, in a process of the engine's interpreter."""
    command = [python, "-m", "loadtests.gpu.torch_copy", str(gpus[0]), str(gpus[-1])]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    for line in said.stdout.splitlines():
        record("torch_copy", **json.loads(line))
    if said.returncode:
        record("torch_copy", error=said.stderr[-500:])


def probe(memory: str, tls: str, gpus: Sequence[int], site: str | None, logs: Path, record: Record) -> None:
    """One probe reads from another; `tls` is UCX_TLS, or empty."""
    link = _measured(memory, tls, gpus, site, logs)
    timings = link.pop("timings", ())
    record("fabric_probe", tls=tls, **{"memory": memory, **link}, shapes=[_shape(each) for each in timings])


def _measured(memory: str, tls: str, gpus: Sequence[int], site: str | None, logs: Path) -> dict[str, Any]:
    paths = [os.environ.get("PYTHONPATH", ""), site or ""]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **({"UCX_TLS": tls} if tls else {})}
    ports, output = free_ports(2), logs / "links.json"
    command = [sys.executable, "-m", "gateway.cli", "fabric-probe"]
    serve = [*command, "serve", "--host", "127.0.0.1", "--memory", memory, "--mebibytes", str(MEBIBYTES)]
    output.unlink(missing_ok=True)
    ends = [
        Child(
            name,
            [*serve, "--name", name, "--port", str(port), "--device", str(gpu)],
            env,
            ROOT,
            logs / f"probe-{name}.log",
        )
        for name, port, gpu in zip(("p0", "d0"), ports, (gpus[0], gpus[-1]), strict=True)
    ]
    try:
        for end, port in zip(ends, ports, strict=True):
            end.start()
            end.wait_ready(lambda end=end, port=port: f":{port}" in end.last_line(), SECONDS)  # type: ignore[misc]
        prefill, decode = (f"{end.name}=127.0.0.1:{port}" for end, port in zip(ends, ports, strict=True))
        run = [*command, "run", "--prefill", prefill, "--decode", decode, "--output", str(output)]
        said = subprocess.run(
            [*run, "--seconds", str(SECONDS)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        links = json.loads(output.read_text())["links"] if output.exists() else []
        return dict(links[0]) if links else {"error": (said.stderr or ends[1].last_line())[-500:]}
    except ProcessFailedError as error:
        return {"error": str(error)[-500:]}
    finally:
        for end in ends:
            end.stop()


def _shape(timing: Mapping[str, float]) -> str:
    nbytes, seconds = timing["pieces"] * timing["piece_bytes"], timing["seconds"]
    size = f"{timing['pieces']:g} x {timing['piece_bytes'] / 1024:g} KiB"
    return f"{size}: {nbytes / seconds / 1e9:.2f} GB/s, {seconds / timing['pieces'] * 1e6:.1f} us each"
