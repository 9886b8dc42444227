"""Write the table in docs/kimi_k3.md that puts vLLM's Kimi-K3 parsers beside ours on the collected outputs.

usage: uv run scripts/compare_k3_parsers.py [VLLM_PYTHON]

Needs the collection (`../shared/cases`, or KVGATEWAY_SHARED) and a Python that has vLLM; left out, it is the
one of the live lane (`scripts/live_setup.sh`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.tokens.tokenizer import Tokenizer
from parsers.answer import AnswerBuilder
from parsers.base import OutputOptions, Segment
from parsers.kimi_k3.markers import END_OF_MSG_ID, MARKERS
from parsers.registry import get_format

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("KVGATEWAY_SHARED") or ROOT.parent / "shared")
PAGE = ROOT / "docs/kimi_k3.md"
START, END = "<!-- vllm -->\n", "<!-- end of vllm -->"
GROUPS = (1, 2, 4, 7, 20)
Said = tuple[str, str, list[tuple[str, Any]]]


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else _live_python()
    model_format = get_format("kimi_k3")
    tokenizer = Tokenizer.load(model_format, SHARED / "data/kimi_k3_tokenizer")
    cases = [_prepared(case, tokenizer) for case in _collected()]
    theirs = _ask_vllm(python, cases)
    rows = [_row(case, their, _ours(case, tokenizer)) for case, their in zip(cases, theirs, strict=True)]
    PAGE.write_text(_with_table(PAGE.read_text(), "\n".join(_table(rows))))


def _collected() -> Iterator[dict[str, Any]]:
    for line in (SHARED / "cases/kimi_k3.jsonl").read_text().split("\n")[:-1]:
        case = json.loads(line)
        if case["kind"] != "encode":
            yield case


def _prepared(case: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The case with its output as (text, ids) of the whole and of groups of tokens."""
    spelled = case.get("tokens")
    segments = [Segment(*each) for each in spelled] if spelled else _segments(case["output"])
    ids = tokenizer.encode_segments(segments).ids.tolist()
    if ids[-1:] == [END_OF_MSG_ID]:
        ids.pop()  # the engine stops there and does not show it
    detokenizer = tokenizer.detokenizer()
    texts = [detokenizer.push(token) for token in ids]
    groups = {
        f"by {size}": [
            ["".join(texts[at : at + size]), ids[at : at + size]] for at in range(0, len(ids), size)
        ]
        for size in GROUPS
    }
    opened = "think" if case["thinking"] else "response"
    prompt = tokenizer.encode_segments(_segments(f"<|open|>{opened}<|sep|>")).ids.tolist()
    return {**case, "groups": {"whole": [["".join(texts), ids]], **groups}, "prompt_ids": prompt, "ids": ids}


def _segments(markup: str) -> list[Segment]:
    pieces = re.split("(" + "|".join(map(re.escape, MARKERS)) + ")", markup)
    return [Segment(piece, piece in MARKERS) for piece in pieces if piece]


def _make_tokenizer(directory: Path) -> None:
    """What vLLM can load: the vocabulary and the tests' class for it."""
    directory.mkdir()
    shutil.copy(SHARED / "data/kimi_k3_tokenizer/tiktoken.model", directory)
    shutil.copy(ROOT / "tests/live/k3/hf/tokenization_k3.py", directory)
    auto = {"AutoTokenizer": ["tokenization_k3.K3Tokenizer", None]}
    config = {"tokenizer_class": "K3Tokenizer", "auto_map": auto}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def _ask_vllm(python: str, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as work:
        directory = Path(work) / "tokenizer"
        _make_tokenizer(directory)
        done = subprocess.run(
            [python, str(Path(__file__).with_name("vllm_k3_parser.py"))],
            input=json.dumps({"tokenizer": str(directory), "cases": cases}),
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HOME": work},
        )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results


def _ours(case: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    options = OutputOptions(
        thinking=case["thinking"],
        tools=case["tools"] or case.get("system_tools"),
        tool_choice=case["tool_choice"],
        parallel_tool_calls=case.get("parallel_tool_calls"),
    )
    results = {}
    for name, groups in case["groups"].items():
        parser = get_format("kimi_k3").parser(options, tokenizer.detokenizer())
        builder = AnswerBuilder()
        for _, ids in groups:
            builder.add(parser.feed(ids))
        builder.add(parser.finish(case["engine_finish"]))
        answer = builder.build(parser)
        calls = [[call.name, call.arguments] for call in answer.tool_calls]
        results[name] = {"reasoning": answer.reasoning, "content": answer.content, "calls": calls}
    return results


# Judging


def _said(result: dict[str, Any]) -> Said | None:
    if "error" in result:
        return None
    calls = [(name, _value(arguments)) for name, arguments in result["calls"]]
    return result["reasoning"], result["content"], calls


def _value(arguments: Any) -> Any:
    try:
        return json.loads(arguments, parse_constant=_no_number) if isinstance(arguments, str) else arguments
    except ValueError:
        return f"not JSON: {arguments}"


def _no_number(name: str) -> float:
    raise ValueError(name)


def _expected(case: dict[str, Any]) -> Said:
    expect = case["expect"]
    calls = [(call["name"], _value(call["arguments"])) for call in expect["tool_calls"]]
    return expect["reasoning_content"] or "", expect["content"] or "", calls


def _verdict(case: dict[str, Any], results: dict[str, Any], streamed: bool) -> str:
    """`right`, or what is wrong, over the whole answer or over all streams."""
    names = [name for name in results if (name != "whole") is streamed]
    found = {_judge(case, results[name]) for name in names} - {"right"}
    return ", ".join(sorted(found)) or "right"


def _judge(case: dict[str, Any], result: dict[str, Any]) -> str:
    said, expected = _said(result), _expected(case)
    if said == expected:
        return "right"
    if said is None:
        return "error"
    leaked = [marker for marker in MARKERS if marker in said[0] + said[1]]
    if any(marker not in expected[0] + expected[1] for marker in leaked):
        return "leaks markers"
    wrong = [
        name for name, a, b in zip(("reasoning", "content", "calls"), said, expected, strict=True) if a != b
    ]
    return "wrong " + " and ".join(wrong)


Row = tuple[dict[str, Any], list[str]]


def _row(case: dict[str, Any], theirs: dict[str, Any], ours: dict[str, Any]) -> Row:
    return case, [
        _verdict(case, results, streamed) for results in (theirs, ours) for streamed in (False, True)
    ]


def _table(rows: Sequence[Row]) -> Iterator[str]:
    firm = [row for row in rows if not row[0].get("soft")]
    for name, some in (("Outputs", firm), ("Debatable outputs", [row for row in rows if row not in firm])):
        counts = [sum(verdicts[at] == "right" for _, verdicts in some) for at in range(4)]
        yield (
            f"{name}: {len(some)}. Right as a whole answer: vLLM {counts[0]}, here {counts[2]}; as a stream "
            f"in every grouping: vLLM {counts[1]}, here {counts[3]}."
        )
        yield ""
    yield "| case | about | vLLM, whole | vLLM, streamed | here, whole | here, streamed |"
    yield "|---|---|---|---|---|---|"
    for case, verdicts in rows:
        if set(verdicts) != {"right"}:
            name = case["id"] + (" (debatable)" if case.get("soft") else "")
            yield f"| {name} | {_about(case)} | {' | '.join(verdicts)} |"


def _about(case: dict[str, Any]) -> str:
    text = case["why"].replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= 90 else text[:87] + "..."


def _with_table(page: str, table: str) -> str:
    head, rest = page.split(START)
    return f"{head}{START}{table}\n{END}{rest.split(END)[1]}"


def _live_python() -> str:
    done = subprocess.run([str(ROOT / "scripts/live_setup.sh")], capture_output=True, text=True, check=True)
    return str(Path(done.stdout.strip()) / "venv/bin/python")


if __name__ == "__main__":
    main()
