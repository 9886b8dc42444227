"""One HTML file about a comparison: tables and charts, nothing to fetch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

from loadtests.fleet import svg
from loadtests.fleet.summary import Summary

_STYLE = """
body{font:14px/1.5 sans-serif;margin:2em auto;max-width:60em;color:#222}
table{border-collapse:collapse}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}tr.best{background:#eef7ee}section{margin-bottom:3em}
"""
_COLUMNS: Mapping[str, str] = {
    "mean": "mean TTFT, s",
    "p50": "p50, s",
    "p90": "p90, s",
    "p99": "p99, s",
    "token_gap": "token gap, s",
    "reuse": "reused",
    "foreseen": "foreseen",
    "busiest": "busiest",
}
_STEPS = 100

Waits = Mapping[tuple[str, str], Sequence[float]]
"""(workload, policy) -> times to first token in seconds, ordered."""


def html_report(title: str, notes: Iterable[str], summaries: Sequence[Summary], waits: Waits) -> str:
    """`summaries` with those of one workload next to each other."""
    sections = [
        _section(workload, list(group), waits)
        for workload, group in groupby(summaries, key=lambda summary: summary.workload)
    ]
    lines = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><ul>{lines}</ul>"
        f"{''.join(sections)}</body></html>\n"
    )


def _section(workload: str, summaries: Sequence[Summary], waits: Waits) -> str:
    bars = svg.bars(
        "Time to first token: mean, and p90 in pale",
        {summary.policy: (summary.mean, summary.p90) for summary in summaries},
        "s",
    )
    curves = svg.curves(
        "Share of requests whose first token came within",
        {
            summary.policy: distribution(waits[workload, summary.policy])
            for summary in summaries
            if waits.get((workload, summary.policy))
        },
        "seconds",
    )
    return f"<section><h2>{escape(workload)}</h2>{_table(summaries)}<p>{bars}</p><p>{curves}</p></section>"


def distribution(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """About a hundred (value, share up to it) points of an ordered sequence."""
    last = len(ordered) - 1
    positions = sorted({round(last * step / _STEPS) for step in range(_STEPS + 1)})
    return [(ordered[position], (position + 1) / len(ordered)) for position in positions]


def _table(summaries: Sequence[Summary]) -> str:
    best = min(summaries, key=lambda summary: summary.mean)
    head = "".join(f"<th>{escape(label)}</th>" for label in _COLUMNS.values())
    rows = []
    for summary in summaries:
        cells = "".join(f"<td>{getattr(summary, name):.3f}</td>" for name in _COLUMNS)
        mark = ' class="best"' if summary is best else ""
        rows.append(f"<tr{mark}><td>{escape(summary.policy)}</td>{cells}</tr>")
    return f"<table><tr><th>policy</th>{head}</tr>{''.join(rows)}</table>"
