"""One request id leads from the client's answer to the gateway's log and to the logs of both workers.

Workers log it when they run with --enable-log-requests, and give it back in a header of their answer with
--enable-request-id-headers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.processes import wait_until
from tests.live.asker import user
from tests.live.pair.rig import COUNT_SECONDS, Pair
from tests.live.vocabulary import answer

SCRIPT = answer("Hm.", "Yes.")


def lines(log: Path, request_id: str) -> list[str]:
    return [line for line in log.read_text(errors="replace").splitlines() if request_id in line]


def received(log: Path, request_id: str) -> list[str]:
    """A worker's lines that say what it was asked."""
    asked = f"Received request generate-tokens-{request_id}: "
    return [line for line in lines(log, request_id) if asked in line]


def ask(pair: Pair, streamed: bool) -> str:
    """The id that the answer's header names."""
    body = pair.pair.body([user("Who is it?")], script=SCRIPT) | {"stream": streamed}
    raw = pair.pair.client.chat.completions.with_raw_response.create(**body)
    raw.http_response.read()
    return str(raw.headers["x-request-id"])


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_the_id_is_in_the_logs_of_the_gateway_and_of_both_workers(pair: Pair, streamed: bool) -> None:
    request_id = ask(pair, streamed)
    gateway, prefill, decode = pair.pair.gateway.log, pair.prefill.log, pair.decode.log
    wait_until("the gateway logs the request", lambda: lines(gateway, request_id), COUNT_SECONDS)
    assert any(" on prefill and decode: " in line for line in lines(gateway, request_id))
    for log, role in ((prefill, "do_remote_decode"), (decode, "do_remote_prefill")):
        (line,) = received(log, request_id)
        assert f"'{role}': True" in line
    (line,) = received(decode, request_id)
    assert f"'remote_request_id': 'generate-tokens-{request_id}-" in line, "decode names prefill's request"


def test_the_answer_of_the_decode_worker_carries_the_id(pair: Pair) -> None:
    request_id = ask(pair, streamed=True)
    leg = pair.decoded(request_id)
    assert leg.headers["x-request-id"] == leg.body["request_id"] == request_id
    assert f"x-request-id: {request_id}\r\n".encode() in leg.response.lower()
