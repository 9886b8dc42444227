"""The legs of a NIXL pull, and the check that an incomplete handle goes no further."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.engines.base import EngineError, EngineRequest
from gateway.handoff.nixl_pull import REQUIRED, check_parameters, prefill_request
from tests.gateway.handoff.parameters import PARAMETERS


def test_whole_parameters_pass() -> None:
    check_parameters(msgspec.json.encode(PARAMETERS))
    check_parameters(msgspec.json.encode({**PARAMETERS, "remote_registration_generation": 3}))


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"{", b"{}", b'{"do_remote_prefill":true}'])
def test_no_parameters_are_a_retryable_failure_of_the_worker(raw: bytes) -> None:
    with pytest.raises(EngineError, match="no usable KV handle") as caught:
        check_parameters(raw)
    assert caught.value.retryable


@pytest.mark.parametrize("name", [*REQUIRED, "do_remote_prefill"])
@pytest.mark.parametrize("value", [None, "", [], True, {}])
def test_a_parameter_that_is_missing_or_odd_is_named(name: str, value: Any) -> None:
    if value is True and name == "do_remote_prefill":
        return
    with pytest.raises(EngineError, match=name):
        check_parameters(msgspec.json.encode({**PARAMETERS, name: value}))


def test_the_prefill_leg_asks_for_one_token_of_one_choice() -> None:
    request = EngineRequest(
        request_id="r",
        model="m",
        token_ids_json=b"1",
        prompt_tokens=1,
        sampling={"max_tokens": b"50", "min_tokens": b"9", "n": b"3", "temperature": b"0.5"},
        top_level={"cache_salt": b'"s"'},
    )
    leg = prefill_request(request)
    assert leg.sampling == {"max_tokens": b"1", "temperature": b"0.5"}
    assert leg.top_level["cache_salt"] == b'"s"'
    asked = msgspec.json.decode(leg.top_level["kv_transfer_params"])
    assert asked["do_remote_decode"] is True
    assert asked["do_remote_prefill"] is False
    assert request.sampling["max_tokens"] == b"50"
