"""How the gateway and each peer are started in front of the mock worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from loadtests.processes import free_ports
from loadtests.scorecard.entries import DYNAMO, OURS, PAIR, VLLM_ROUTER

ROOT = Path(__file__).resolve().parents[2]
MODEL = "mock"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One server to measure. `helpers` run beside it and are not measured."""

    port: int
    command: Sequence[str]
    env: Mapping[str, str] = {}
    helpers: Sequence[Sequence[str]] = ()


Wrap = Callable[[Launch], Launch]


class Site(msgspec.Struct, frozen=True):
    """Where a run happens."""

    peers: Path
    """What `loadtests/peers/setup.sh` made."""
    work: Path
    """A directory of the run's own: logs, request bodies, discovery files."""
    upstream: str
    """host:port of the mock worker."""


class AbsentError(Exception):
    """A server cannot be measured here; the message says why."""


def vocabulary() -> str | None:
    """The real K3 vocabulary where there is one, so that what is measured is the real work."""
    named = os.environ.get("KVGATEWAY_K3_TOKENIZER")
    directory = Path(named) if named else ROOT.parent / "shared/data/kimi_k3_tokenizer"
    return str(directory) if (directory / "tiktoken.model").exists() else None


def launch(server: str, site: Site, paced: bool) -> Launch:
    """Raises AbsentError when the peer is not installed."""
    return _LAUNCHES[server](site, paced)


def _ours(site: Site, paced: bool) -> Launch:
    port, admin = free_ports(2)
    command = [sys.executable, "-m", "gateway.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--admin-port", str(admin), "--worker", f"http://{site.upstream}", "--log-level", "error"]
    if (directory := vocabulary()) is not None:
        command += ["--tokenizer", directory]
    return Launch(port=port, command=command, env={"PYTHONPATH": str(ROOT)})


def _pair(site: Site, paced: bool) -> Launch:
    """The mock worker takes both legs, under two names."""
    ours = _ours(site, paced)
    config = site.work / f"pair-{ours.port}.toml"
    config.write_text(
        "".join(
            f'[[workers]]\nname = "{role}"\nrole = "{role}"\nurl = "http://{site.upstream}"\n'
            for role in ("prefill", "decode")
        )
    )
    at = ours.command.index("--worker")
    command = [*ours.command[:at], "--config", str(config), *ours.command[at + 2 :]]
    return Launch(port=ours.port, command=command, env=ours.env)


def _vllm_router(site: Site, paced: bool) -> Launch:
    program = _installed(site, "vllm_router/bin/vllm-router")
    port, prometheus = free_ports(2)
    options = {
        "worker-urls": f"http://{site.upstream}",
        "policy": "round_robin",
        "host": "127.0.0.1",
        "port": port,
        "prometheus-port": prometheus,
        "log-level": "error",
        "max-concurrent-requests": 8192,
    }
    return Launch(port=port, command=[program, *_flags(options)])


def _dynamo(site: Site, paced: bool) -> Launch:
    """The frontend, which is measured, and its own mock worker; they meet through files: no etcd, no NATS."""
    python = _installed(site, "dynamo/bin/python")
    (port,) = free_ports(1)
    planes = {"discovery-backend": "file", "request-plane": "tcp", "event-plane": "zmq"}
    worker = {
        "model-path": site.peers / "model",
        "model-name": MODEL,
        "speedup-ratio": 1 if paced else 1000,
        "num-gpu-blocks-override": 200_000,
        "block-size": 16,
        "max-num-seqs": 2048,
        "max-num-batched-tokens": 262_144,
    }
    frontend = {"http-host": "127.0.0.1", "http-port": port, "router-mode": "round-robin"}
    return Launch(
        port=port,
        command=[python, "-m", "dynamo.frontend", *_flags(frontend), *_flags(planes)],
        env={
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(site.work / f"dynamo-{port}"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_LOG": "error",
            "HF_HUB_OFFLINE": "1",
        },
        helpers=[[python, "-m", "dynamo.mocker", *_flags(worker), *_flags(planes)]],
    )


_LAUNCHES: Mapping[str, Callable[[Site, bool], Launch]] = {
    OURS: _ours,
    PAIR: _pair,
    VLLM_ROUTER: _vllm_router,
    DYNAMO: _dynamo,
}


def _installed(site: Site, program: str) -> str:
    path = site.peers / program
    if not path.exists():
        raise AbsentError(f"no {path} (loadtests/peers/setup.sh makes it)")
    return str(path)


def _flags(options: Mapping[str, object]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]
