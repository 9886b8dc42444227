"""Whole runs: repeatable, complete, and true to what they say about events, noise and dying workers."""

from __future__ import annotations

import msgspec
import pytest

from loadtests.fleet.agentic import Agentic, AgenticSpec
from loadtests.fleet.cache import Removed, Stored
from loadtests.fleet.chooser import RouterChooser, kv_event
from loadtests.fleet.engine import EngineSpec
from loadtests.fleet.fleet import Change, Fleet, FleetSpec, Record, Workload
from loadtests.fleet.policies import ORACLE, OWN, POLICIES
from loadtests.fleet.timing import QUIET
from loadtests.fleet.workloads import OpenLoop, chat, hot_prefix, many_customers, no_reuse, shared_prompt
from router.events import BlockRemoved, BlockStored, GroupKind

SMALL = FleetSpec(workers=3, engine=EngineSpec(capacity_blocks=300))
HYBRID = FleetSpec(workers=2, engine=EngineSpec(block_tokens=1_536, capacity_blocks=300, state_blocks=3))


def talk(seed: int = 1) -> Workload:
    return chat(seed, 512, rate=2.0, duration=20.0)


def run(policy: str, workload: Workload, spec: FleetSpec = SMALL, seed: int = 1) -> Fleet:
    fleet = Fleet(spec, POLICIES[policy], seed)
    fleet.run(workload)
    return fleet


def outcome(records: list[Record]) -> list[tuple[str, float, float]]:
    return [(record.worker, record.first_token, record.finished) for record in records]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_run_and_every_request_ends(policy: str) -> None:
    first, second = (run(policy, talk()).records for _ in range(2))
    assert outcome(first) == outcome(second)
    for record in first:
        assert record.request.arrival < record.first_token <= record.finished
        assert 0 <= record.cached_tokens < record.request.prompt_tokens


def test_another_seed_gives_another_run() -> None:
    assert outcome(run("kv", talk(), seed=1).records) != outcome(run("kv", talk(), seed=2).records)


@pytest.mark.parametrize("policy", [*OWN, "dynamo", ORACLE])
def test_nothing_stays_open(policy: str) -> None:
    fleet = run(policy, talk())
    assert all(worker.engine.idle for worker in fleet.workers.values())
    if isinstance(fleet._chooser, RouterChooser):
        assert fleet._chooser.router.snapshot_stats().open_reservations == 0


@pytest.mark.parametrize("spec", [SMALL, HYBRID])
def test_a_quiet_sequential_run_is_foreseen_exactly(spec: FleetSpec) -> None:
    spec = msgspec.structs.replace(spec, noise=QUIET, event_lag=0.0)
    spaced = [
        msgspec.structs.replace(request, arrival=60.0 * number)
        for number, request in enumerate(
            many_customers(
                1, spec.engine.block_tokens, rate=1.0, count=60, customers=4, context=9_000
            ).requests
        )
    ]
    for policy in ("kv", "dynamo"):
        records = run(policy, OpenLoop(spaced), spec).records
        assert all(record.overlap_tokens == record.cached_tokens for record in records)
        assert sum(record.cached_tokens for record in records) > 0


def test_lost_and_late_events_make_the_router_wrong_not_the_run() -> None:
    spec = msgspec.structs.replace(SMALL, event_lag=2.0, event_loss=0.2)
    fleet = run("kv", talk(), spec)
    assert fleet.lost_messages > 0
    assert all(record.finished > 0 for record in fleet.records)
    assert any(record.overlap_tokens != record.cached_tokens for record in fleet.records)


def test_requests_of_a_dying_worker_begin_again_elsewhere() -> None:
    changes = (Change(5.0, "die", "w0"), Change(6.0, "join", "w9"))
    fleet = run("kv", talk(), msgspec.structs.replace(SMALL, changes=changes))
    moved = [record for record in fleet.records if record.moves]
    assert moved
    assert all(record.worker != "w0" and record.finished > 0 for record in moved)
    assert any(record.worker == "w9" for record in fleet.records)


def test_a_stretch_of_decoding_is_cut_by_an_arrival() -> None:
    """A prompt that arrives while others decode waits for one step, not for the stretch."""
    spec = FleetSpec(workers=1, noise=QUIET)
    first, second = no_reuse(1, 512, rate=1.0, count=2, median=200).requests
    requests = [
        msgspec.structs.replace(first, arrival=0.0, output_tokens=60, blocks=tuple(range(1, 9))),
        msgspec.structs.replace(second, arrival=0.1),
    ]
    records = run("kv", OpenLoop(requests), spec).records
    assert records[1].ttft < 0.05 + second.prompt_tokens / 10_000


@pytest.mark.parametrize(
    "workload",
    [
        Agentic(1, 512, AgenticSpec(sessions=4, ramp=10.0, duration=40.0, fan_out=0.3)),
        shared_prompt(512, concurrency=6),
        hot_prefix(1, 512, rate=2.0, count=30),
        no_reuse(1, 512, rate=2.0, count=30),
        many_customers(1, 512, rate=2.0, count=30),
    ],
    ids=["agentic", "shared_prompt", "hot_prefix", "no_reuse", "many_customers"],
)
def test_every_generator_runs(workload: Workload) -> None:
    records = run("kv", workload, msgspec.structs.replace(SMALL, engine=EngineSpec())).records
    assert len(records) >= 18
    assert all(record.finished > 0 for record in records)


def test_agents_do_the_same_whatever_the_policy() -> None:
    """Each session's requests are the same sequence; only their times differ."""
    by_policy = []
    for policy in ("kv", "round_robin"):
        records = run(policy, Agentic(1, 512, AgenticSpec(sessions=3, ramp=5.0, duration=30.0))).records
        sessions: dict[int, list[int]] = {}
        for record in records:
            sessions.setdefault(record.request.session, []).append(record.request.prompt_tokens)
        by_policy.append(sessions)
    for session in (0, 1, 2):
        first, second = (sessions[session] for sessions in by_policy)
        shorter = min(len(first), len(second))
        assert first[:shorter] == second[:shorter]


def test_events_are_what_an_engine_publishes() -> None:
    stored = kv_event(Stored((7, 8), 6), 4)
    assert isinstance(stored, BlockStored)
    assert (stored.parent, stored.group, stored.kind) == (6, 0, GroupKind.ATTENTION)
    assert len(stored.token_ids) == 4 * 2 * 4
    state = kv_event(Stored((8,), None, state=True), 4)
    assert isinstance(state, BlockStored)
    assert (state.group, state.kind, state.token_ids) == (1, GroupKind.STATE, b"")
    gone = kv_event(Removed((7,), state=True), 4)
    assert isinstance(gone, BlockRemoved)
    assert (list(gone.block_hashes), gone.group) == ([7], 1)
