"""The end of an answer: its usage, counted and logged."""

from __future__ import annotations

import asyncio
import logging

from gateway.api.services import Services
from gateway.api.usage import Usage, usage_of
from gateway.serving.flight import Flight
from gateway.serving.job import Prepared
from gateway.serving.tool_checks import check_tool_calls

logger = logging.getLogger(__name__)


def settle(prepared: Prepared, flight: Flight) -> None:
    """The key pays for what was said, also when the client left before the end."""
    if prepared.charge is not None:
        counted = prepared.reading(flight.pool).counted_prompt_tokens
        prepared.charge.settle(counted + flight.generation.completion_tokens)


def account(services: Services, prepared: Prepared, flight: Flight) -> Usage:
    """Usage of a complete answer."""
    reading = prepared.reading(flight.pool)
    usage = usage_of(flight, reading.counted_prompt_tokens)
    check_tool_calls(prepared.job.request_id, reading.options, flight.generation, services.metrics)
    services.metrics.prompt_tokens += usage.prompt_tokens
    services.metrics.cached_tokens += usage.prompt_tokens_details.cached_tokens
    settle(prepared, flight)
    if logger.isEnabledFor(logging.INFO):
        started = prepared.job.started
        logger.info(
            "request %s key %s model %s on %s: %d prompt tokens, %d cached, %d expected, %d output tokens, "
            "%.3f s to the first, %.3f s",
            prepared.job.request_id,
            prepared.key_name or "-",
            prepared.job.model,
            flight.workers,
            usage.prompt_tokens,
            usage.prompt_tokens_details.cached_tokens,
            flight.overlap_tokens,
            usage.completion_tokens,
            max(0.0, flight.first_token_at - started),
            asyncio.get_running_loop().time() - started,
        )
    return usage
