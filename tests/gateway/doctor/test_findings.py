"""Each finding, provoked on simulated workers, or on answers that no simulated worker gives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.config import WorkerSettings
from gateway.doctor import examine as examining
from gateway.doctor.examine import Examined, examine
from gateway.doctor.findings import Finding, Fleet, diagnose, pairs
from gateway.doctor.report import as_json, as_text
from gateway.fleet.vitals import Transfers, Vitals
from gateway.fleet.worker import Profile
from tests.gateway.doctor.conftest import Start
from tests.gateway.fleet.test_probe import MODELS, Answers, sglang
from tests.gateway.fleet.test_probe import worker as answering
from tests.simulator.conftest import RunningWorker

Pair = tuple[RunningWorker, RunningWorker]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(examining, "EVENT_SECONDS", 1.0)
    monkeypatch.setattr(examining, "HANDSHAKE_SECONDS", 1.0)


def settings(worker: RunningWorker, name: str, role: str = "aggregated", **more: Any) -> WorkerSettings:
    return WorkerSettings(url=worker.url, name=name, role=role, **{"max_num_seqs": 8, **more})  # type: ignore[arg-type]


async def fault(worker: RunningWorker, **faults: float) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{worker.url}/sim/fault", json=faults) as response,
    ):
        assert response.status == 200


async def look(*workers: WorkerSettings, lease: float = 30.0, **options: Any) -> list[Examined]:
    async with aiohttp.ClientSession() as session:
        return [await examine(session, each, **options) for each in workers]


def found(seen: Sequence[Examined], lease: float = 30.0, state: bool = False) -> dict[str, Finding]:
    fleet = Fleet(workers=seen, lease_seconds=lease, has_state=lambda _: state)
    return {finding.code: finding for finding in diagnose(fleet)}


def legs(pair: Pair, **both: Any) -> tuple[WorkerSettings, WorkerSettings]:
    return settings(pair[0], "p", "prefill", **both), settings(pair[1], "d", "decode", **both)


async def test_a_fleet_that_is_well_has_no_findings_and_a_full_table(pair: Pair, start: Start) -> None:
    both = await start()
    seen = await look(settings(both, "a"), *legs(pair))
    assert found(seen) == {}
    reports = pairs(Fleet(workers=seen, lease_seconds=30))
    text = as_text(seen, reports, [])
    for shown in ("vllm 0.32.0+sim", "generate", "exact", "yes", " ok", "tcp", "Nothing to change."):
        assert shown in text
    told = msgspec.json.decode(as_json(seen, reports, []))
    assert [each["name"] for each in told["workers"]] == ["a", "p", "d"]
    assert told["pairs"][0]["obstacle"] is None
    assert seen[1].events[0].block_sizes == {0: 32}
    assert seen[1].shaken is not None


async def test_without_requests_nothing_is_generated(pair: Pair) -> None:
    seen = await look(*legs(pair), requests=False)
    assert [each.arrived for each in seen[0].events] == [None]
    assert seen[0].side_channel is None
    assert len(pair[0].connector.handoff.leases) == 0  # type: ignore[union-attr]


async def test_a_worker_that_is_not_there() -> None:
    finding = found(await look(WorkerSettings(url="http://127.0.0.1:1", name="gone")))["unreachable"]
    assert (finding.severity, finding.worker) == ("error", "gone")
    assert "Connect" in finding.message


async def test_a_worker_in_another_role_than_configured() -> None:
    async with answering(sglang(), role="prefill") as (_, configured):
        assert "configured as prefill" in found(await look(configured))["unreachable"].message


async def test_a_worker_that_takes_text_alone() -> None:
    async with answering({"/v1/models": (200, MODELS)}) as (_, configured):
        assert "no token ids" in found(await look(configured))["text_only"].message


async def test_a_worker_without_events() -> None:
    answers: Answers = {"/v1/models": (200, MODELS), "/v1/completions": (400, {})}
    async with answering(answers) as (_, configured):
        assert found(await look(configured, requests=False)).keys() == {"no_events"}


async def test_a_decode_worker_without_events_is_only_a_note() -> None:
    answers: Answers = {"/v1/models": (200, MODELS), "/v1/completions": (400, {})}
    async with answering(answers, role="decode") as (_, configured):
        findings = found(await look(configured, requests=False))
        assert findings["decode_without_events"].severity == "note"
        assert findings["max_num_seqs"].severity == "warning"
        assert "no_events" not in findings


async def test_an_event_port_that_is_closed(start: Start) -> None:
    worker = await start()
    seen = await look(settings(worker, "a", kv_events="tcp://127.0.0.1:1", kv_replay="tcp://127.0.0.1:1"))
    assert "events_unreachable" in found(seen)


async def test_events_that_do_not_come(start: Start) -> None:
    worker = await start()
    await fault(worker, event_loss=1.0)
    assert "events_silent" in found(await look(settings(worker, "a")))


async def test_a_worker_without_replay(start: Start) -> None:
    worker = await start()
    assert "no_replay" in found(await look(settings(worker, "a", kv_events=worker.publisher.endpoint)))


async def test_a_replay_port_that_is_closed(start: Start) -> None:
    worker = await start()
    wrong = settings(worker, "a", kv_events=worker.publisher.endpoint, kv_replay="tcp://127.0.0.1:1")
    assert "replay_unreachable" in found(await look(wrong))


async def test_events_of_another_worker_have_the_wrong_block_size(start: Start) -> None:
    worker, other = await start(block_size=32), await start(block_size=16)
    await look(settings(other, "other"))
    events = {"kv_events": other.publisher.endpoint, "kv_replay": other.publisher.replay_endpoint}
    findings = found(await look(settings(worker, "a", **events)))
    assert (
        "says that blocks have 32 tokens and announces blocks of 16" in findings["wrong_block_size"].message
    )
    assert "events_silent" in findings


async def test_blocks_of_two_sizes_make_no_pair(start: Start) -> None:
    one = await start(role="prefill", transport="inline", block_size=32)
    two = await start(role="decode", transport="inline", block_size=16)
    finding = found(await look(*legs((one, two))))["no_pair"]
    assert "block size: 32 on prefill, 16 on decode" in finding.message
    assert "--block-size" in finding.fix


async def test_a_side_channel_on_localhost_that_another_machine_needs(pair: Pair) -> None:
    prefill, decode = (
        msgspec.structs.replace(each, labels={"host": host})
        for each, host in zip(legs(pair), ("node-1", "node-2"), strict=True)
    )
    assert found(await look(prefill, decode))["localhost_side_channel"].worker == "p"


async def test_compatibility_hashes_that_differ(start: Start) -> None:
    one = await start(role="prefill", transport="inline", kv_bytes_per_token=64)
    two = await start(role="decode", transport="inline", kv_bytes_per_token=128)
    assert found(await look(*legs((one, two))))["compatibility"].worker == "p, d"


async def test_one_side_channel_port_for_two_workers(pair: Pair, start: Start) -> None:
    address = pair[0].connector.handoff.endpoint.removeprefix("tcp://")  # type: ignore[union-attr]
    seen = await look(*legs(pair, side_channel=address), requests=False)
    assert found(seen)["port_clash"].worker == "d, p"


async def test_another_engine_behind_a_side_channel(pair: Pair) -> None:
    seen = await look(legs(pair)[0])
    seen[0].answer_engine_id = "someone else"
    assert "another engine answers" in found(seen)["port_clash"].message


async def test_a_side_channel_that_is_silent(pair: Pair) -> None:
    seen = await look(legs(pair, side_channel="127.0.0.1:1")[0], requests=False)
    assert "nobody answers at 127.0.0.1:1" in found(seen)["no_handshake"].message


async def test_a_lease_that_is_shorter_than_the_gateway_believes(start: Start) -> None:
    worker = await start(role="prefill", transport="inline", kv_lease_seconds=0.5)
    seen = await look(settings(worker, "p", "prefill"), lease_up_to=5.0)
    assert seen[0].lease_seconds is not None
    assert "gave up a prefill's blocks after" in found(seen)["lease_clock"].message
    assert "lease_clock" not in found(seen, lease=seen[0].lease_seconds)


async def test_a_lease_that_is_as_long_as_believed_is_no_finding(pair: Pair) -> None:
    seen = await look(legs(pair)[0], lease_up_to=0.3)
    assert seen[0].lease_seconds is None
    assert found(seen) == {}


async def test_a_path_that_was_lost_while_every_transfer_succeeds(start: Start) -> None:
    size = {"kv_bytes_per_token": 65_536, "num_blocks": 16, "transport": "inline"}
    prefill, decode = await start(role="prefill", **size), await start(role="decode", **size)
    await fault(decode, slow_link=50e6)
    ids = list(range(5, 205))
    async with aiohttp.ClientSession() as session:

        async def generate(worker: RunningWorker, **extra: Any) -> dict[str, Any]:
            body = {"model": "moonshotai/Kimi-K3", "token_ids": ids, "sampling_params": {"max_tokens": 1}}
            async with session.post(f"{worker.url}/inference/v1/generate", json=body | extra) as response:
                assert response.status == 200, await response.text()
                answer: dict[str, Any] = await response.json()
                return answer

        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        told = await generate(prefill, kv_transfer_params=asked)
        await generate(decode, kv_transfer_params=told["kv_transfer_params"])
    near = {"labels": {"host": "a", "nvlink": "true"}}
    seen = await look(*legs((prefill, decode), **near), requests=False)
    assert found(seen)["slow_path"].message.endswith("a link of class nvlink gives about 251")
    report = pairs(Fleet(workers=seen, lease_seconds=30))[0]
    assert report.measured_gigabytes_per_second == pytest.approx(0.05, rel=0.5)


def known(version: str, **changes: Any) -> Examined:
    profile = Profile(
        models=("m",),
        context_length=None,
        endpoint="generate",
        engine="vllm",
        version=version,
        max_num_seqs=4,
    )
    configured = WorkerSettings(url="http://h:1", name="w", role="decode")
    return Examined(name="w", settings=configured, role="decode", profile=profile, **changes)


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("0.31.9", True),
        ("v0.26.0", True),
        ("0.32.0", False),
        ("0.32.0+sim", False),
        ("1.0", False),
        ("dev", False),
    ],
)
def test_a_version_that_hands_over_wrong_states(version: str, old: bool) -> None:
    assert ("old_version" in found([known(version)], state=True)) is old
    assert "old_version" not in found([known(version)], state=False)


def test_counters_of_leases_are_read() -> None:
    expired = known("0.32", vitals=Vitals(transfers=Transfers(expired=3)))
    late = known("0.32", vitals=Vitals(transfers=Transfers(expired=3, late=1)))
    assert "3 prefills were never read" in found([expired])["leases_expired"].message
    assert found([late])["late_reads"].severity == "error"


async def test_a_sglang_pair_is_looked_at_without_requests() -> None:
    async with answering(sglang(disaggregation_mode="prefill")) as (_, configured):
        seen = await look(configured)
        await asyncio.sleep(0)
    assert seen[0].role == "prefill"
    assert seen[0].request_error is None
    assert found(seen).keys() == {"events_unreachable"}
