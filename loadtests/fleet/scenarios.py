"""Workloads by name, each with the fleet that it is run on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from loadtests.fleet.agentic import Agentic, AgenticSpec
from loadtests.fleet.engine import EngineSpec
from loadtests.fleet.fleet import Change, Fleet, FleetSpec, Workload
from loadtests.fleet.policies import POLICIES
from loadtests.fleet.summary import Summary, summarize
from loadtests.fleet.trace import load_trace
from loadtests.fleet.workloads import OpenLoop, chat, hot_prefix, many_customers, no_reuse, shared_prompt

SIXTEEN = FleetSpec()
SMALL_CACHES = FleetSpec(workers=8, engine=EngineSpec(capacity_blocks=600))
HYBRID = FleetSpec(workers=8, engine=EngineSpec(block_tokens=1_536, capacity_blocks=1_400, state_blocks=3))
"""Kimi-K3's recipe: blocks of 1,536 tokens, three state groups beside the attention group."""
CHURN = (
    Change(60.0, "die", "w3"),
    Change(90.0, "join", "w16"),
    Change(120.0, "join", "w17"),
    Change(150.0, "die", "w7"),
    Change(200.0, "join", "w18"),
)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A workload from a seed, on a fleet."""

    name: str
    fleet: FleetSpec
    make: Callable[[int], Workload]
    measure_from: float = 0.0
    """Requests that arrive earlier, in seconds, only warm the fleet up."""


def _scenario(
    name: str,
    fleet: FleetSpec,
    make: Callable[..., Workload],
    *,
    measure_from: float = 0.0,
    **keywords: object,
) -> Scenario:
    size = fleet.engine.block_tokens
    return Scenario(
        name=name,
        fleet=fleet,
        make=lambda seed: make(seed, size, **keywords),
        measure_from=measure_from,
    )


def _shared_prompt(seed: int, block_tokens: int, concurrency: int) -> Workload:
    return shared_prompt(block_tokens, concurrency=concurrency)


_chat = partial(_scenario, make=chat, median=6_000, sigma=1.4)
_agentic = AgenticSpec(duration=450.0)

GENERATED = {
    scenario.name: scenario
    for scenario in (
        _scenario("agentic", SIXTEEN, Agentic, measure_from=220.0, spec=_agentic),
        _scenario("many_customers", SMALL_CACHES, many_customers, rate=20.0, count=4_000),
        _scenario("many_overload", SMALL_CACHES, many_customers, rate=24.0, count=4_000),
        _scenario("k3_16", HYBRID, _shared_prompt, concurrency=16),
        _scenario("k3_64", HYBRID, _shared_prompt, concurrency=64),
        _scenario("k3_256", HYBRID, _shared_prompt, concurrency=256),
        _scenario("no_reuse", SIXTEEN, no_reuse, rate=20.0, count=4_000),
        _scenario("hot_prefix", SIXTEEN, hot_prefix, rate=50.0, count=5_000),
        _chat("chat", SIXTEEN, rate=2.0, duration=600.0),
        _chat("chat_busy", SIXTEEN, rate=4.0, duration=400.0),
        _chat("chat_overload", SIXTEEN, rate=6.0, duration=300.0),
        _chat("churn", msgspec.structs.replace(SIXTEEN, changes=CHURN), rate=3.0, duration=300.0),
    )
}
"""Scenarios that need no file."""


def trace_scenario(
    path: Path, speed: float, *, fleet: FleetSpec = SIXTEEN, first: int = 0, last: int | None = None
) -> Scenario:
    """A trace at `speed` times its pace; the seed is in the fleet's noise alone."""
    requests = load_trace(path, speed=speed, first=first, last=last, block_tokens=fleet.engine.block_tokens)
    name = f"{path.name.removesuffix('.jsonl').removesuffix('_trace')} {speed:g}x"
    return Scenario(name=name, fleet=fleet, make=lambda seed: OpenLoop(requests))


def run_once(scenario: Scenario, policy: str, seed: int) -> tuple[Summary, Fleet]:
    """One run of a policy on a scenario."""
    fleet = Fleet(scenario.fleet, POLICIES[policy], seed)
    fleet.run(scenario.make(seed))
    return summarize(policy, scenario.name, fleet, scenario.measure_from), fleet
