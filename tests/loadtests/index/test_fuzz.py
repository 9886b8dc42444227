"""The index of the benchmark, fed through raw payloads, against brute force; and what the fuzz can see."""

from __future__ import annotations

import pytest

from loadtests.index.fuzz import Fuzz
from loadtests.index.subjects import Kvgateway


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_ours_is_right(seed: int, states: bool) -> None:
    assert Fuzz(Kvgateway, seed, counted=True, states=states).run() == ""


class Deaf(Kvgateway):
    """Hears every 40th event not."""

    _heard = 0

    def store(self, worker: int, payload: bytes) -> None:
        self._heard += 1
        if self._heard % 40:
            super().store(worker, payload)


def test_a_lost_event_is_found() -> None:
    assert any(Fuzz(Deaf, seed, counted=True, states=False).run() for seed in range(3))


def test_removals_are_counted() -> None:
    assert any(Fuzz(Kvgateway, seed, counted=False, states=False).run() for seed in range(4))
