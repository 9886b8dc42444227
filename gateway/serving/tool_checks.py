"""Counts what models get wrong about tools, once an answer is complete. Answers stay as they are."""

from __future__ import annotations

import logging

from gateway.serving.generation import Generation
from gateway.telemetry.metrics import Metrics
from parsers.base import OutputOptions
from parsers.tool_calls import call_violations

logger = logging.getLogger(__name__)


def check_tool_calls(
    request_id: str, options: OutputOptions | None, generation: Generation, metrics: Metrics
) -> None:
    """Look at every choice of a complete answer."""
    if options is None or not options.tools or options.tool_choice == "none":
        return
    must = options.tool_choice == "required" or not isinstance(options.tool_choice, str | None)
    for choice in generation.choices:
        calls = choice.parser.finished_calls()
        metrics.tool_calls += len(calls)
        if must and not calls:
            metrics.missing_tool_calls += 1
            logger.warning("request %s: the answer has no call, though one was required", request_id)
        for violation in call_violations(calls, options.tools):
            metrics.count_violation(violation.kind)
            logger.warning("request %s: a tool call is wrong: %.200s", request_id, violation.detail)
