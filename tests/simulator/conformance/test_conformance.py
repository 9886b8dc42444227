"""A simulated worker against recorded traffic of a real one.

Runs from the recordings beside the checkout; without them from the part of them that the repository keeps.
"""

from __future__ import annotations

import asyncio
import zipfile
from functools import cache

import pytest

from tests.simulator.conformance import sources
from tests.simulator.conformance.parts import Outcomes, Part, parts

PARTS = {part.name: part for part in parts()}


@cache
def outcomes(name: str) -> Outcomes:
    """A part's scenarios build on each other, so all of them run, once."""
    return asyncio.run(PARTS[name].run())


@pytest.fixture(params=PARTS)
def part(request: pytest.FixtureRequest) -> Part:
    found = PARTS[request.param]
    if found.needs_all and not sources.has_all():
        pytest.skip(f"no recorded traffic and models at {sources.CAPTURES} and {sources.MODELS}")
    return found


def test_equal_to_the_recording(part: Part) -> None:
    found = outcomes(part.name)
    assert found
    different = {label: how for label, how in found.items() if how and label not in part.reasons}
    assert different == {}


def test_every_reason_is_still_needed(part: Part) -> None:
    found = outcomes(part.name)
    equal = [label for label in part.reasons if label in found and not found[label]]
    assert equal == []


def test_the_repository_keeps_what_was_recorded() -> None:
    if not sources.has_all():
        pytest.skip(f"no recorded traffic at {sources.CAPTURES}")
    kept = [name for name in sources.EVENT_FOLDERS if _same(name)]
    assert kept == list(sources.EVENT_FOLDERS)


def _same(name: str) -> bool:
    archive = zipfile.ZipFile(sources.PACKED)
    recorded = {path.name: path.read_bytes() for path in (sources.CAPTURES / name).glob("*.frames")}
    return all(archive.read(f"{name}/{label}") == data for label, data in recorded.items())
