"""What a run comes to, and the mean over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import msgspec

from loadtests.fleet.fleet import Fleet, Record


class Summary(msgspec.Struct, kw_only=True):
    """Of one policy on one workload. Times in seconds; over several seeds each field is a mean."""

    policy: str
    workload: str
    requests: float
    mean: float
    """Time to first token."""
    p50: float
    p90: float
    p99: float
    token_gap: float
    """Mean over requests of the mean time between tokens."""
    reuse: float
    """Share of prompt tokens that were cached."""
    foreseen: float
    """Share of requests whose cached tokens were predicted exactly."""
    busiest: float
    """Requests of the worker that got most, over the mean."""
    preemptions: float


def summarize(policy: str, workload: str, fleet: Fleet, measure_from: float = 0.0) -> Summary:
    """A finished run, without the requests that arrived before `measure_from` seconds."""
    records = [record for record in fleet.records if record.request.arrival >= measure_from]
    if not records:
        raise ValueError(f"{workload}: no request arrived after {measure_from} s")
    waits = sorted(record.ttft for record in records)
    counts = Counter(record.worker for record in records)
    return Summary(
        policy=policy,
        workload=workload,
        requests=len(records),
        mean=fmean(waits),
        p50=quantile(waits, 0.5),
        p90=quantile(waits, 0.9),
        p99=quantile(waits, 0.99),
        token_gap=fmean(token_gaps(records) or [0.0]),
        reuse=sum(record.cached_tokens for record in records)
        / sum(record.request.prompt_tokens for record in records),
        foreseen=fmean(record.cached_tokens == record.overlap_tokens for record in records),
        busiest=max(counts.values()) * len(counts) / len(records),
        preemptions=fleet.preemptions,
    )


def token_gaps(records: Sequence[Record]) -> list[float]:
    """Mean seconds between tokens, of each request with more than one."""
    return [
        (record.finished - record.first_token) / (record.request.output_tokens - 1)
        for record in records
        if record.request.output_tokens > 1
    ]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of an ordered sequence lies."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def mean_summary(summaries: Sequence[Summary]) -> Summary:
    """The mean over seeds of one policy's runs on one workload."""
    first = summaries[0]
    fields = {
        name: fmean(getattr(summary, name) for summary in summaries)
        for name in Summary.__struct_fields__
        if name not in ("policy", "workload")
    }
    return Summary(policy=first.policy, workload=first.workload, **fields)


_COLUMNS = ("mean", "p50", "p90", "p99", "token_gap", "reuse", "foreseen", "busiest")


def table(summaries: Sequence[Summary]) -> str:
    """Rows of text, a blank line between workloads."""
    lines = [f"{'workload':<18}{'policy':<18}" + "".join(f"{name:>10}" for name in _COLUMNS)]
    previous = ""
    for summary in summaries:
        if previous not in ("", summary.workload):
            lines.append("")
        previous = summary.workload
        figures = "".join(f"{getattr(summary, name):>10.3f}" for name in _COLUMNS)
        lines.append(f"{summary.workload:<18}{summary.policy:<18}{figures}")
    return "\n".join(lines) + "\n"
