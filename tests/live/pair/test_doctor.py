"""The doctor and the gateway itself know a real pair: handshakes, hashes, events, links, another life."""

from __future__ import annotations

import uuid

from loadtests.processes import wait_until
from tests.live.asker import user
from tests.live.doctor import codes, doctor
from tests.live.pair.rig import Pair
from tests.live.pair.workers import LEASE_SECONDS
from tests.live.worker import BLOCK

LOOK_SECONDS = 30.0


def test_a_real_pair_is_well(pair: Pair) -> None:
    code, seen = doctor("--config", str(pair.pair.config), "--measure-lease")
    assert (code, codes(seen)) == (0, {"decode_without_events", "max_num_seqs"})
    prefill, decode = seen["workers"]
    for worker, port in ((prefill, pair.prefill.side_port), (decode, pair.decode.side_port)):
        assert worker["side_channel"] == f"127.0.0.1:{port}"
        assert worker["shaken"]["engine_id"] == worker["answer_engine_id"]
        assert worker["shaken"]["block_size"] == worker["profile"]["block_size"] == BLOCK
    assert prefill["shaken"]["compatibility"] == decode["shaken"]["compatibility"]
    assert prefill["events"][0] | {"endpoint": "", "replay": ""} == {
        "endpoint": "",
        "replay": "",
        "state": "exact",
        "reason": "",
        "connected": True,
        "replayed": True,
        "arrived": True,
        "block_sizes": {"0": BLOCK},
    }
    assert prefill["lease_seconds"] is not None
    assert abs(prefill["lease_seconds"] - LEASE_SECONDS) < 2
    assert seen["pairs"][0]["obstacle"] is None


def test_a_lease_that_the_gateway_believes_to_be_longer_is_found(pair: Pair) -> None:
    arguments = ("--config", str(pair.pair.config), "--measure-lease", "--kv-lease-seconds", "30")
    code, seen = doctor(*arguments)
    assert code == 1
    assert "lease_clock" in codes(seen)


def test_the_running_gateway_learns_side_channel_and_engine_from_answers(pair: Pair) -> None:
    answer = pair.pair.ask(
        [user("Hello.")], streamed=True, thinking=False, max_tokens=2, cache_salt=uuid.uuid4().hex
    )
    assert answer.finish
    workers = {worker["name"]: worker for worker in pair.pair.gateway.workers()}
    assert workers["prefill"]["engine_id"]
    wait_until(
        "the gateway has read decode's transfers",
        lambda: pair.pair.gateway.metric("kvgateway_kv_bytes_transferred_total") > 0,
        LOOK_SECONDS,
    )
    _, seen = doctor("--gateway", pair.pair.gateway.admin_url, "--no-requests")
    assert codes(seen) - {"leases_expired"} == {"decode_without_events", "max_num_seqs"}
