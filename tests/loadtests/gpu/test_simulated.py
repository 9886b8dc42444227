"""The experiments run from end to end; what simulated workers cannot show is not looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens.tokenizer import Tokenizer
from loadtests.gpu import __main__ as command
from loadtests.gpu import crowd, handoff, hybrid, slow_path
from loadtests.gpu.shapes import spelled, write_model
from parsers.registry import get_format


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs an experiment; its results by name."""
    for module, name, value in (
        (handoff, "IDLE_SECONDS", 0.1),
        (slow_path, "LEARNING_SECONDS", 0.1),
        (command, "LEARNING_SECONDS", 0.1),
        (slow_path, "TURNS", 1),
        (crowd, "TURNS", 2),
        (crowd, "PREFIX_TOKENS", 640),
        (hybrid, "MIXED", 6),
    ):
        monkeypatch.setattr(module, name, value)

    def run(experiment: str) -> dict[str, list[dict[str, Any]]]:
        out = tmp_path / experiment
        arguments = [experiment, "--simulated", "--sizes", "500", "--each", "1"]
        assert command.main([*arguments, "--models", str(tmp_path / "models"), "--out", str(out)]) == 0
        found: dict[str, list[dict[str, Any]]] = {}
        for line in (out / "results.jsonl").read_text().splitlines():
            found.setdefault(json.loads(line)["experiment"], []).append(json.loads(line))
        return found

    return run


@pytest.mark.timeout(300)
def test_a_pair_answers_as_one_worker_does(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_doctor", lambda *_: None)
    found = results("pair")
    assert [each["equal"] for each in found["answers"]] == [1, 1]
    assert not any(each["differences"] for each in found["answers"])
    assert all(each["mb_moved_each"] > 0 for each in found["answers"])
    assert all(each["handoff_ms"] > 0 and each["cpu_ms"] > 0 for each in found["handoff"])
    assert all(each["shared_tokens_cached"] > 0 for each in found["crowd"])
    assert [each["answers_equal"] for each in found["crowd"]] == [16, 16]


@pytest.mark.timeout(300)
def test_predictions_are_held_against_reports(results: Any) -> None:
    found = results("hybrid")
    assert [each["front"] for each in found["hybrid_hits"]] == ["pair", "plain", "connector"]
    assert all(each["exact_by_rule"]["state-exact"] == each["exact"] for each in found["hybrid_hits"])
    reported = {each["name"][0]: each["reported"] for each in found["hybrid_request"][:6]}
    assert reported == {"A": 0, "B": 0, "C": 256, "E": 0, "F": 0, "G": 192}


def test_the_gateway_spells_ids_with_the_models_vocabulary(tmp_path: Path) -> None:
    write_model(tmp_path, "attention")
    tokenizer = Tokenizer.load(get_format("kimi_k3"), tmp_path / "vocabulary")
    assert tokenizer.decode([17, 2, 2047]) == spelled([17, 2, 2047]) == "17 2 2047 "
