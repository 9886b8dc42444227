"""Dynamo's own offline replay as a referee: its router and its mock engines beside ours, on the same traces.

Two questions. Does our simulation, given Dynamo's formula and its engine's timing, come to the same result?
And do placements that our router makes give shorter waits than Dynamo's in Dynamo's own engines? For the
second, each worker's share of the trace is replayed on one mock engine, as the placements divided it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from loadtests.fleet.engine import EngineSpec
from loadtests.fleet.fleet import Fleet, FleetSpec
from loadtests.fleet.policies import POLICIES
from loadtests.fleet.request import Request
from loadtests.fleet.summary import quantile
from loadtests.fleet.timing import QUIET, mocker_timing
from loadtests.fleet.trace import TRACE_BLOCK, save_trace
from loadtests.fleet.workloads import OpenLoop
from loadtests.peers import peers_dir

_RUNNER = Path(__file__).with_name("dynamo_replay.py")
_MOCK_BLOCK = 64
DYNAMO_ROUTERS: dict[str, dict[str, float] | None] = {
    "round_robin": None,
    "dynamo": {},
    "dynamo_scale4": {"prefill_load_scale": 4.0},
}
"""Our name of a policy -> Dynamo's router configuration; None for its round robin."""


class RefereeError(Exception):
    """Dynamo's replay is absent or failed."""


class Verdict(NamedTuple):
    """Times to first token in seconds, and the share of prompt tokens that were cached."""

    mean: float
    p90: float
    reuse: float


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet of mock engines."""

    workers: int = 8
    capacity_tokens: int = 1_048_576
    step_tokens: int = 8_192
    max_sequences: int = 256
    event_lag: float = 0.0
    """Seconds."""

    @property
    def fleet(self) -> FleetSpec:
        """The same fleet in our simulation."""
        engine = EngineSpec(
            timing=mocker_timing(self.capacity_tokens),
            block_tokens=TRACE_BLOCK,
            capacity_blocks=self.capacity_tokens // TRACE_BLOCK,
            step_tokens=self.step_tokens,
            max_sequences=self.max_sequences,
        )
        return FleetSpec(workers=self.workers, engine=engine, noise=QUIET, event_lag=self.event_lag)

    @property
    def mock_engine(self) -> dict[str, Any]:
        """Dynamo's settings for it."""
        return {
            "backend": "vllm",
            "block_size": _MOCK_BLOCK,
            "num_gpu_blocks": self.capacity_tokens // _MOCK_BLOCK,
            "max_num_seqs": self.max_sequences,
            "max_num_batched_tokens": self.step_tokens,
            "enable_prefix_caching": True,
            "speedup_ratio": 1.0,
        }


def dynamo_python() -> Path:
    """The interpreter that has Dynamo; raises RefereeError."""
    path = peers_dir() / "dynamo" / "bin" / "python"
    if not path.exists():
        raise RefereeError(f"no Dynamo in {path.parent.parent}: run loadtests/peers/setup.sh")
    return path


def ask_dynamo(
    requests: Sequence[Request], setup: Setup, routers: Mapping[str, dict[str, float] | None] = DYNAMO_ROUTERS
) -> dict[str, Verdict]:
    """Dynamo's routers on Dynamo's engines."""
    with TemporaryDirectory() as folder:
        trace = Path(folder, "trace.jsonl")
        save_trace(trace, requests, TRACE_BLOCK)
        jobs = [_job(trace, setup, setup.workers, router) for router in routers.values()]
        results = _run(jobs)
    return {name: _verdict([result], [1]) for name, result in zip(routers, results, strict=True)}


def ask_simulation(requests: Sequence[Request], setup: Setup, policy: str, seed: int = 1) -> Verdict:
    """The same from our simulation."""
    fleet = _simulated(requests, setup, policy, seed)
    waits = sorted(record.ttft for record in fleet.records)
    cached = sum(record.cached_tokens for record in fleet.records)
    prompts = sum(record.request.prompt_tokens for record in fleet.records)
    return Verdict(fmean(waits), quantile(waits, 0.9), cached / prompts)


def judge_placements(requests: Sequence[Request], setup: Setup, policy: str, seed: int = 1) -> Verdict:
    """Where a policy places the requests in our simulation, replayed in Dynamo's engines."""
    shares: dict[str, list[Request]] = {}
    for record in _simulated(requests, setup, policy, seed).records:
        shares.setdefault(record.worker, []).append(record.request)
    with TemporaryDirectory() as folder:
        jobs = []
        for worker, share in shares.items():
            trace = Path(folder, f"{worker}.jsonl")
            save_trace(trace, share, TRACE_BLOCK)
            jobs.append(_job(trace, setup, 1, None))
        results = _run(jobs)
    tokens = [sum(request.prompt_tokens for request in share) for share in shares.values()]
    return _verdict(results, tokens)


def _simulated(requests: Sequence[Request], setup: Setup, policy: str, seed: int) -> Fleet:
    fleet = Fleet(setup.fleet, POLICIES[policy], seed)
    fleet.run(OpenLoop(requests))
    return fleet


def _job(trace: Path, setup: Setup, workers: int, router: dict[str, float] | None) -> dict[str, Any]:
    return {
        "trace": str(trace),
        "workers": workers,
        "speed": 1.0,
        "block_tokens": TRACE_BLOCK,
        "engine": setup.mock_engine,
        "router": router,
        "lag_ms": setup.event_lag * 1000 or None,
    }


def _run(jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(dynamo_python()), str(_RUNNER)],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env={**os.environ, "DYN_LOG": "error"},
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(results) != len(jobs):
        raise RefereeError(f"Dynamo's replay failed: {done.stderr[-500:]}")
    return results


def _verdict(results: Iterable[dict[str, Any]], weights: Sequence[int]) -> Verdict:
    results = list(results)
    waits = sorted(wait / 1000 for result in results for wait in result["ttft_ms"])
    reuse = sum(result["reuse"] * weight for result, weight in zip(results, weights, strict=True))
    return Verdict(fmean(waits), quantile(waits, 0.9), reuse / sum(weights))
