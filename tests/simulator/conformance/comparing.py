"""Answers side by side: equal but for what is random, timed, or learned by a model with weights."""

from __future__ import annotations

import json
import re
from typing import Any

Json = Any

MASKS = [
    (re.compile(r"(^|\.)(id|request_id|remote_request_id)$"), re.compile(r"[0-9a-f]{8,32}")),
    (re.compile(r"(^|\.)(created|created_at)$"), re.compile(r"\d+")),
    (re.compile(r"(^|\.)system_fingerprint$"), re.compile(r"[0-9a-f]{8}$")),
    (re.compile(r"(^|\.)(logprob|token_logprobs\.\d+)$"), re.compile(r".*")),
    (re.compile(r"(^|\.)data\.\d+\.root$"), re.compile(r".*")),
]
"""What is masked: the path of a value, and which part of it."""
RANDOM_WEIGHTS = re.compile(r"(^|\.)top_logprobs(\.\d+)?$")
"""Lists of likely tokens, of which only the length says something."""
SHOWN = 3
_SAMPLE = re.compile(r"([\w:]+)(?:\{(.*)\})? ")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def events(body: bytes) -> list[Json]:
    """What a server-sent stream carries: JSON values, and [DONE]."""
    found: list[Json] = []
    for block in body.decode().split("\n\n"):
        if block:
            text = block.removeprefix("data: ")
            found.append(text if text == "[DONE]" else json.loads(text))
    return found


def by_choice(found: list[Json]) -> list[Json]:
    """Events with those of one choice after those of another: which comes first is a matter of time."""

    def number(event: Json) -> int:
        choices = event.get("choices") if isinstance(event, dict) else None
        return choices[0]["index"] if choices else len(found)

    return sorted(found, key=number)


def metric_shapes(page: str) -> dict[str, Json]:
    """For each sample's name its labels, and the bounds of buckets; for each family its type."""
    shapes: dict[str, Json] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            shapes[f"type of {name}"] = kind
        elif line and not line.startswith("#"):
            found = _SAMPLE.match(line)
            assert found is not None, line
            labels = _LABEL.findall(found[2] or "")
            shape = shapes.setdefault(found[1], {"labels": sorted(name for name, _ in labels), "le": []})
            shape["le"] += [value for name, value in labels if name == "le" and value not in shape["le"]]
    return dict(sorted(shapes.items()))


def metric_value(page: str, sample: str) -> float:
    """The value of one sample, given by the beginning of its line."""
    line = next(line for line in page.splitlines() if line.startswith(sample))
    return float(line.rpartition(" ")[2])


def differences(ours: Json, theirs: Json, path: str = "") -> list[str]:
    """Where two JSON values differ, the order of keys included; nothing when they are equal."""
    if type(ours) is not type(theirs):
        return [f"{path}: {_short(ours)} instead of {_short(theirs)}"]
    if RANDOM_WEIGHTS.search(path) and isinstance(ours, list | dict):
        return [] if len(ours) == len(theirs) else [f"{path}: {len(ours)} instead of {len(theirs)}"]
    if isinstance(ours, dict):
        return _objects(ours, theirs, path)
    if isinstance(ours, list):
        if len(ours) != len(theirs):
            return [f"{path}: {len(ours)} entries instead of {len(theirs)}"]
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [one for place, (a, b) in pairs for one in differences(a, b, f"{path}.{place}")]
    if _masked(ours, path) != _masked(theirs, path):
        return [f"{path}: {_short(ours)} instead of {_short(theirs)}"]
    return []


def told(found: list[str]) -> str:
    """Differences in a line."""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more


def _objects(ours: dict[str, Json], theirs: dict[str, Json], path: str) -> list[str]:
    if list(ours) != list(theirs):
        return [_keys(list(ours), list(theirs), path)]
    return [one for key in ours for one in differences(ours[key], theirs[key], f"{path}.{key}")]


def _keys(ours: list[str], theirs: list[str], path: str) -> str:
    more, less = [key for key in ours if key not in theirs], [key for key in theirs if key not in ours]
    if not more and not less:
        return f"{path}: keys in the order {ours} instead of {theirs}"
    return f"{path}: " + ", ".join(
        [*(f"key {key} too many" for key in more), *(f"no key {key}" for key in less)]
    )


def _masked(value: Json, path: str) -> Json:
    for where, what in MASKS:
        if where.search(path):
            value = what.sub("*", str(value))
    return value


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
