"""A diagnosis for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.doctor.examine import Examined
from gateway.doctor.findings import Finding, PairReport

UNKNOWN = "-"


def as_json(workers: Sequence[Examined], pairs: Sequence[PairReport], findings: Sequence[Finding]) -> bytes:
    """Everything that was seen."""
    told: dict[str, Any] = {
        "workers": [msgspec.to_builtins(seen) for seen in workers],
        "pairs": [msgspec.to_builtins(pair) for pair in pairs],
        "findings": [msgspec.to_builtins(finding) for finding in findings],
    }
    return msgspec.json.format(msgspec.json.encode(told), indent=2)


def as_text(workers: Sequence[Examined], pairs: Sequence[PairReport], findings: Sequence[Finding]) -> str:
    """Tables of workers and pairs, then what to change."""
    head = ("worker", "role", "engine", "endpoint", "block", "seqs", "events", "replay", "side channel")
    parts = [_table([head, *map(_row, workers)])]
    if pairs:
        title = ("prefill", "decode", "link", "GB/s expected", "GB/s measured", "fits")
        parts.append(_table([title, *map(_pair_row, pairs)]))
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity:<8}{finding.worker}: {finding.message} [{finding.code}]")
        lines.append(f"{'':<8}-> {finding.fix}")
    parts.append("\n".join(lines) if lines else "Nothing to change.")
    return "\n\n".join(parts) + "\n"


def _row(seen: Examined) -> tuple[str, ...]:
    profile = seen.profile
    if profile is None:
        return seen.name, seen.role, "unreachable", *[UNKNOWN] * 6
    events = seen.events
    return (
        seen.name,
        seen.role,
        f"{profile.engine} {profile.version or ''}".strip(),
        profile.endpoint,
        _blocks(seen),
        str(profile.max_num_seqs or UNKNOWN),
        ", ".join(sorted({each.state for each in events})) or "none",
        _all({each.replayed for each in events}),
        _channel(seen),
    )


def _blocks(seen: Examined) -> str:
    """By group, as announced, else as the worker says."""
    assert seen.profile is not None
    announced = dict(sorted(item for each in seen.events for item in each.block_sizes.items()))
    if len(announced) > 1:
        return " ".join(f"{group}:{size}" for group, size in announced.items())
    return str(next(iter(announced.values()), None) or seen.profile.block_size or UNKNOWN)


def _all(answers: set[bool | None]) -> str:
    if not answers or None in answers:
        return "none"
    return "yes" if answers == {True} else "no"


def _channel(seen: Examined) -> str:
    if seen.profile is not None and seen.profile.bootstrap is not None:
        return f"{seen.profile.bootstrap.host}:{seen.profile.bootstrap.port}"
    if seen.side_channel is None:
        return UNKNOWN
    return f"{seen.side_channel} {'ok' if seen.shaken is not None else 'silent'}"


def _pair_row(pair: PairReport) -> tuple[str, ...]:
    measured = pair.measured_gigabytes_per_second
    return (
        pair.prefill,
        pair.decode,
        pair.link,
        f"{pair.expected_gigabytes_per_second:g}",
        UNKNOWN if measured is None else f"{measured:.2f}",
        "yes" if pair.obstacle is None else f"no: {pair.obstacle}",
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
