"""The end of an answer: its usage, counted and logged."""

from __future__ import annotations

import logging

from gateway.api.services import Services
from gateway.api.usage import Usage, usage_of
from gateway.serving.flight import Flight
from gateway.serving.job import Prepared
from gateway.serving.tool_checks import check_tool_calls

logger = logging.getLogger(__name__)


def account(services: Services, prepared: Prepared, flight: Flight) -> Usage:
    """Usage of a complete answer."""
    reading = prepared.reading(flight.pool)
    usage = usage_of(flight, reading.counted_prompt_tokens)
    check_tool_calls(prepared.job.request_id, reading.options, flight.generation, services.metrics)
    services.metrics.prompt_tokens += usage.prompt_tokens
    services.metrics.cached_tokens += usage.prompt_tokens_details.cached_tokens
    if logger.isEnabledFor(logging.INFO):
        logger.info(
            "request %s on %s: %d prompt tokens, %d cached, %d expected, %d output tokens",
            prepared.job.request_id,
            flight.workers,
            usage.prompt_tokens,
            usage.prompt_tokens_details.cached_tokens,
            flight.overlap_tokens,
            usage.completion_tokens,
        )
    return usage
