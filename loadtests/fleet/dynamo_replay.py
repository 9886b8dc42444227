"""Runs in Dynamo's interpreter: jobs as JSON on standard input, one JSON line of results for each.

A job is {"trace", "workers", "speed", "block_tokens", "engine", "router" (null for round robin), "lag_ms"}; a
result is {"ttft_ms": [...], "reuse": share}, in the order in which Dynamo reports requests.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import dynamo._core as core  # type: ignore[import-not-found]
from dynamo.llm import KvRouterConfig  # type: ignore[import-not-found]


def replay(job: dict[str, Any], report: Path) -> dict[str, Any]:
    router = job["router"]
    choice: dict[str, Any] = {"router_mode": "round_robin"}
    if router is not None:
        choice = {
            "router_mode": "kv_router",
            "router_config": KvRouterConfig(**router),
            "kv_event_lag_ms": job["lag_ms"],
        }
    result = core.run_mocker_trace_replay(
        [job["trace"]],
        num_workers=job["workers"],
        arrival_speedup_ratio=job["speed"],
        trace_block_size=job["block_tokens"],
        extra_engine_args={"engine": job["engine"]},
        report_jsonl_path=str(report),
        **choice,
    )
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    report.unlink()
    return {
        "ttft_ms": [line["ttft_ms"] for line in lines],
        "reuse": result.summary["prefix_cache_reused_ratio"],
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for job in json.load(sys.stdin):
            print(json.dumps(replay(job, Path(folder, "report.jsonl"))), flush=True)


if __name__ == "__main__":
    main()
