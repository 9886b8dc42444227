"""The room in which the two legs meet."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gateway.engines.base import EngineError
from gateway.engines.sglang import Bootstrap, SglangEngine
from gateway.engines.vllm import VllmEngine
from gateway.handoff.base import HandoffError, decode_request
from gateway.handoff.sglang_bootstrap import SglangBootstrap, room_fields
from tests.gateway.engines.test_sglang import LENGTH, request, said
from tests.gateway.raw_worker import running, silence, status, stream


def test_both_legs_are_told_host_port_and_a_room_of_63_bits() -> None:
    fields = room_fields(Bootstrap("p", 8998), None)
    assert {name: msgspec.json.decode(fields[name]) for name in ("bootstrap_host", "bootstrap_port")} == {
        "bootstrap_host": "p",
        "bootstrap_port": 8998,
    }
    assert 0 <= int(fields["bootstrap_room"]) < 2**63
    assert len(fields) == 3


def test_no_room_is_used_twice() -> None:
    rooms = {room_fields(Bootstrap("p", 1), None)["bootstrap_room"] for _ in range(1000)}
    assert len(rooms) == 1000


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_room_belongs_to_the_rank_that_was_chosen(size: int) -> None:
    for rank in range(size):
        fields = room_fields(Bootstrap("p", 1, size), rank)
        assert 0 <= int(fields["bootstrap_room"]) < 2**63
        assert int(fields["bootstrap_room"]) % size == rank
        assert fields["disagg_prefill_dp_rank"] == b"%d" % rank


async def test_the_leg_runs_on_while_decode_is_given_its_room() -> None:
    async with running(silence, status(200)) as p:
        engine = SglangEngine(p.url, bootstrap=Bootstrap("h", 9))
        result = await SglangBootstrap().prefill(engine, request())
        decode = decode_request(request(), result.handle)
        await asyncio.wait_for(p.asked.wait(), 5)
        assert result.leg is not None
        assert not result.leg.done()
        sent = p.requests[0][1]
        assert decode.top_level["bootstrap_room"] == b"%d" % sent["bootstrap_room"]
        assert (sent["bootstrap_host"], sent["bootstrap_port"]) == ("h", 9)
        with pytest.raises(HandoffError, match="has been used"):
            decode_request(request(), result.handle)
        result.leg.cancel()


async def test_each_attempt_has_a_room_of_its_own() -> None:
    answer = stream(said([1], 1, reason=LENGTH))
    async with running(answer, answer) as p:
        engine = SglangEngine(p.url, bootstrap=Bootstrap("h", 9))
        for _ in range(2):
            result = await SglangBootstrap().prefill(engine, request())
            assert result.leg is not None
            await result.leg
        first, second = (sent for _, sent in p.requests)
    assert first["bootstrap_room"] != second["bootstrap_room"]
    assert first["rid"] != second["rid"]


async def test_a_worker_without_a_bootstrap_server_is_not_asked() -> None:
    for engine in (SglangEngine("http://127.0.0.1:1"), VllmEngine("http://127.0.0.1:1", "generate")):
        with pytest.raises(EngineError, match="no bootstrap server"):
            await SglangBootstrap().prefill(engine, request())
