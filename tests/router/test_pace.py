"""How fast ranks prefill: the pool soon, a rank on much evidence, nobody out of bounds."""

from __future__ import annotations

import pytest

from router.pace import Pace


def test_a_pool_follows_its_first_prefills_and_a_new_rank_follows_the_pool() -> None:
    pool = Pace()
    assert pool.factor == 1.0
    for _ in range(20):
        Pace(pool).learn(1.0, 2.0)
    assert pool.factor == pytest.approx(2.0, abs=0.1)
    assert Pace(pool).factor == pool.factor


def test_a_rank_differs_as_far_as_much_work_has_shown() -> None:
    pool = Pace()
    slow, usual = Pace(pool), Pace(pool)
    for _ in range(30):
        slow.learn(1.0, 2.0)
        for _ in range(9):
            usual.learn(1.0, 1.0)
    assert 1.1 < slow.factor < 1.3
    for _ in range(2_000):
        slow.learn(1.0, 2.0)
        for _ in range(9):
            usual.learn(1.0, 1.0)
    assert slow.factor > 1.6
    assert usual.factor < 1.1


def test_a_factor_is_bounded() -> None:
    pool = Pace()
    for _ in range(50):
        pool.learn(1.0, 0.0)
    assert pool.factor == 0.05
    for _ in range(50):
        pool.learn(0.0, 1_000.0)
    assert pool.factor == 20.0


def test_what_was_long_ago_is_forgotten() -> None:
    pool = Pace()
    for _ in range(3_000):
        pool.learn(1.0, 4.0)
    for _ in range(3_000):
        pool.learn(1.0, 1.0)
    assert pool.factor < 1.2
