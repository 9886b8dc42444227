"""`kvgateway replay`: a table on standard output, one report that needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.cli import main
from loadtests.fleet.trace import save_trace
from loadtests.fleet.workloads import chat


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "tiny_trace.jsonl"
    save_trace(path, chat(1, 512, rate=2.0, duration=10.0).requests, 512)
    return path


def test_a_table_and_a_report(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.html"
    arguments = ["replay", str(trace), "--policy", "kv, dynamo,oracle", "--html", str(report)]
    assert main([*arguments, "--speed", "1,3", "--workers", "2", "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["workload", "policy", "mean"]
    rows = [line.split() for line in lines[1:] if line]
    assert [(row[1], row[2]) for row in rows] == [
        (speed, policy) for speed in ("1x", "3x") for policy in ("kv", "dynamo", "oracle")
    ]
    page = report.read_text()
    assert page.count("<svg") == page.count("</svg>") == 4
    assert not re.search(r'(src|href)="|@import|url\(', page)
    assert "tiny 3x" in page


def test_a_built_in_workload_needs_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = str(tmp_path / "r.html")
    assert main(["replay", "k3_16", "--policy", "least_loaded", "--html", report, "--lag", "1"]) == 0
    assert "k3_16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.jsonl"], "is no file and no built-in workload"),
        (["{trace}", "--policy", "best"], "no policy best"),
        (["{trace}", "--policy", ","], "no policy is named"),
        (["{trace}", "--speed", "0"], "above 0"),
        (["{trace}", "--requests", "5"], "FIRST:LAST"),
        (["{trace}", "--requests", "9999:"], "no requests"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *(argument.format(trace=trace) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
