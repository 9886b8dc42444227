"""`kvgateway doctor`: looks at a configured fleet, or at the one of a running gateway."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from gateway.config import Settings, StartupError, WorkerSettings
from gateway.doctor.examine import Examined, examine
from gateway.doctor.findings import Finding, Fleet, diagnose, pairs
from gateway.doctor.report import as_json, as_text
from parsers.registry import get_format

FOUND = 1
"""Exit code when there are errors."""
GATEWAY_TIMEOUT = aiohttp.ClientTimeout(total=10)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Beside those of the settings."""
    command.add_argument("--gateway", metavar="URL", help="admin URL of a running gateway, whose fleet it is")
    command.add_argument("--json", action="store_true", help="print everything that was seen, as JSON")
    command.add_argument(
        "--no-requests", action="store_true", help="send no request of one token to see events and leases"
    )
    command.add_argument(
        "--measure-lease",
        action="store_true",
        help="wait until each prefill worker gives up the blocks of a prefill that nobody reads",
    )


def run(options: argparse.Namespace, settings: Settings) -> int:
    """The exit code: 0, or 1 when there are errors. Raises StartupError."""
    workers, pairs_seen, findings = asyncio.run(look(options, settings))
    if options.json:
        sys.stdout.write(as_json(workers, pairs_seen, findings).decode() + "\n")
    else:
        sys.stdout.write(as_text(workers, pairs_seen, findings))
    return FOUND if any(finding.severity == "error" for finding in findings) else 0


async def look(
    options: argparse.Namespace, settings: Settings
) -> tuple[Sequence[Examined], Sequence[Any], Sequence[Finding]]:
    """Workers, pairs and findings. Raises StartupError: there is nobody to look at."""
    async with aiohttp.ClientSession() as session:
        told: list[Finding] = []
        configured = list(settings.effective_workers())
        if options.gateway:
            configured, told = await _from_gateway(session, options.gateway)
        if not configured:
            raise StartupError("there are no workers to look at: give --config, --worker or --gateway")
        lease = settings.kv_lease_seconds + 2 if options.measure_lease else None
        # One after another: a worker that is asked by two at once is not the fleet's usual one.
        seen = [
            await examine(session, each, requests=not options.no_requests, lease_up_to=lease)
            for each in configured
        ]
    formats = {pool.name: pool.model_format for pool in settings.effective_pools()}
    fleet = Fleet(
        workers=seen,
        lease_seconds=settings.kv_lease_seconds,
        has_state=lambda pool: _has_state(formats.get(pool) or settings.model_format),
        required_link={pool.name: pool.required_link for pool in settings.effective_pools()},
    )
    return seen, pairs(fleet), [*diagnose(fleet), *told]


def _has_state(model_format: str) -> bool:
    shape = get_format(model_format).kv_shape
    return shape is not None and shape.state_layers > 0


async def _from_gateway(
    session: aiohttp.ClientSession, url: str
) -> tuple[list[WorkerSettings], list[Finding]]:
    """The workers of a running gateway, and what it knows itself. Raises StartupError."""
    try:
        async with session.get(f"{url.rstrip('/')}/workers", timeout=GATEWAY_TIMEOUT) as response:
            answer = msgspec.json.decode(await response.read())
        described: list[dict[str, Any]] = answer["workers"]
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise StartupError(f"--gateway {url}: {type(error).__name__}: {error}") from None
    workers = [
        WorkerSettings(
            url=each["url"],
            name=each["name"],
            role=each["role"],
            pool=each["pool"],
            labels=each["labels"],
            **each["configured"],
        )
        for each in described
    ]
    return workers, [finding for each in described for finding in _gateway_findings(each)] + [
        Finding(
            code="slow_path",
            severity="error",
            worker=f"{pair['prefill']}, {pair['decode']}",
            message=f"the gateway sees transfers far under what {pair['link']} gives",
            fix="see the path's switches in docs/operations.md",
        )
        for pair in answer.get("pairs", ())
        if pair.get("slow")
    ]


def _gateway_findings(described: dict[str, Any]) -> list[Finding]:
    return [
        Finding(
            code="feed",
            severity="warning",
            worker=described["name"],
            message=f"the gateway's picture of rank {feed['dp_rank']} is {feed['state']}: {feed['reason']}",
            fix="see its events above; the gateway must reach the same ports",
        )
        for feed in described["feeds"]
        if feed["state"] != "exact"
    ]
