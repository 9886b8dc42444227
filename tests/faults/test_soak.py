"""The soak in small: under load, a worker killed or frozen every few seconds; answers are right or errors."""

from __future__ import annotations

from pathlib import Path

from loadtests.chaos.soak import Soak


async def test_no_answer_is_wrong_while_workers_are_killed_and_frozen(tmp_path: Path) -> None:
    report = await Soak(tmp_path, concurrent=16, every_seconds=5.0, transport="inline").run(28.0)
    assert (report.wrong, report.unclear, report.kv_violations) == (0, 0, 0), report
    assert report.deaths >= 2
    assert report.right > 0
    assert report.continued_right > 0
