"""What counts as a bar that holds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadtests.fleet import bars
from loadtests.fleet.__main__ import main
from loadtests.fleet.bars import IMPAIRED_SUFFIX, Results, compare, judge, policies_for, scenarios
from loadtests.fleet.scenarios import GENERATED
from loadtests.fleet.summary import Summary, mean_summary, quantile


def summary(workload: str, policy: str, mean: float, p90: float = 1.0) -> Summary:
    return Summary(
        policy=policy,
        workload=workload,
        requests=1,
        mean=mean,
        p50=mean,
        p90=p90,
        p99=p90,
        token_gap=0.0,
        reuse=0.0,
        foreseen=1.0,
        busiest=1.0,
        preemptions=0,
    )


def verdicts(*summaries: Summary) -> dict[str, tuple[bool, str]]:
    return {bar.name: (bar.holds, bar.beside) for bar in judge(summaries)}


def test_kv_must_be_near_the_lowest_of_all_but_the_oracle() -> None:
    others = [summary("agentic", "dynamo", 2.0, 0.9), summary("agentic", "oracle", 0.1, 0.1)]
    assert verdicts(summary("agentic", "kv", 2.05), *others) == {
        "agentic: mean": (True, "dynamo"),
        "agentic: p90": (False, "dynamo"),
    }
    assert not verdicts(summary("agentic", "kv", 2.07), *others)["agentic: mean"][0]


def test_without_reuse_kv_is_held_against_least_loaded_alone() -> None:
    least = summary("no_reuse", "least_loaded", 1.0)
    better = summary("no_reuse", "dynamo", 0.5)
    assert verdicts(summary("no_reuse", "kv", 1.02), least, better)["no_reuse: mean"] == (
        True,
        "least_loaded",
    )
    assert not verdicts(summary("no_reuse", "kv", 1.03), least)["no_reuse: mean"][0]


def test_late_and_lossy_events_may_cost_15_percent() -> None:
    late = "agentic" + IMPAIRED_SUFFIX
    found = verdicts(
        summary("agentic", "kv", 1.0), summary("agentic", "dynamo", 1.0), summary(late, "kv", 1.15, 1.2)
    )
    assert found[f"{late}: mean"] == (True, "unimpaired")
    assert not found[f"{late}: p90"][0]


def test_impaired_scenarios_differ_in_their_events_alone() -> None:
    found = scenarios(None)
    late = found["agentic" + IMPAIRED_SUFFIX]
    assert (late.fleet.event_lag, late.fleet.event_loss) == (2.0, 0.01)
    assert msgspec.structs.replace(late.fleet, event_lag=0.05, event_loss=0.0) == found["agentic"].fleet
    assert policies_for(late) == ("kv",)
    assert "oracle" in policies_for(found["agentic"])


def test_runs_are_kept_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = GENERATED["k3_16"]
    scenario = msgspec.structs.replace(whole, fleet=msgspec.structs.replace(whole.fleet, workers=2))
    monkeypatch.setattr(bars, "POLICIES", ("kv", "least_loaded"))
    path = tmp_path / "runs.jsonl"
    first = compare([scenario], [1, 2], Results(path), str)
    assert len(path.read_bytes().splitlines()) == 4
    monkeypatch.setattr(bars, "run_once", None)
    assert compare([scenario], [1, 2], Results(path), str) == first


def test_means_and_quantiles() -> None:
    assert mean_summary([summary("w", "kv", 1.0), summary("w", "kv", 2.0)]).mean == 1.5
    assert quantile(range(10), 0.9) == 9
    assert quantile([1.0], 0.99) == 1.0


def test_an_unknown_workload_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bars", "nothing"]) == 2
    assert "no workload nothing" in capsys.readouterr().err
