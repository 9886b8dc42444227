"""vLLM's own Kimi-K3 parsers on given outputs. Runs in an environment that has vLLM, not in the project's.

Reads {"tokenizer": directory, "cases": [...]} and writes, for each case, what the parsers make of the whole
output and of it in groups of tokens. `scripts/compare_k3_parsers.py` starts it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager


def main() -> None:
    task = json.load(sys.stdin)
    tokenizer = AutoTokenizer.from_pretrained(task["tokenizer"], trust_remote_code=True)
    parser_class = ParserManager.get_parser("kimi_k3", "kimi_k3", enable_auto_tools=True)
    results = [_case(parser_class, tokenizer, case) for case in task["cases"]]
    json.dump(results, sys.stdout)


def _case(parser_class: Any, tokenizer: Any, case: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, groups in case["groups"].items():
        try:
            request = _request(case)
            parser = parser_class(
                tokenizer, request.tools, chat_template_kwargs={"thinking": case["thinking"]}
            )
            results[name] = (
                _whole(parser, request, groups[0])
                if name == "whole"
                else _streamed(parser, request, groups, case)
            )
        except Exception as error:  # whatever it is, it is what a client would have met
            results[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
    return results


def _request(case: dict[str, Any]) -> ChatCompletionRequest:
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "model": "m"}
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        if case.get(name) is not None:
            fields[name] = case[name]
    if not fields.get("tools"):
        fields.pop("tools", None)
        fields.pop("tool_choice", None)
    return ChatCompletionRequest(**fields)


def _whole(parser: Any, request: ChatCompletionRequest, group: Any) -> dict[str, Any]:
    text, ids = group
    reasoning, content, calls = parser.parse(
        text, request, enable_auto_tools=True, model_output_token_ids=ids
    )
    return {
        "reasoning": reasoning or "",
        "content": content or "",
        "calls": [[call.name, call.arguments] for call in calls or ()],
    }


def _streamed(
    parser: Any, request: ChatCompletionRequest, groups: Any, case: dict[str, Any]
) -> dict[str, Any]:
    reasoning, content, calls = "", "", []
    for number, (text, ids) in enumerate(groups, 1):
        delta = parser.parse_delta(text, ids, request, case["prompt_ids"], finished=number == len(groups))
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for call in delta.tool_calls or ():
            while len(calls) <= call.index:
                calls.append(["", ""])
            if call.function is not None:
                calls[call.index][0] += call.function.name or ""
                calls[call.index][1] += call.function.arguments or ""
    return {"reasoning": reasoning, "content": content, "calls": calls}


if __name__ == "__main__":
    main()
