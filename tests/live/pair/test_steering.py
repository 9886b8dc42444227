"""What a client says of KV transfers goes no further: such parameters read other prompts, or end a worker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.asker import answer_of, user
from tests.live.pair.rig import Pair
from tests.live.pair.workers import PrefillWorker
from tests.live.rig import words

TOKENS = 16


def foreign(prefill: PrefillWorker) -> dict[str, Any]:
    """Good ones, of another prompt."""
    return prefill.prefill(list(range(100, 300)))


def incomplete(_: PrefillWorker) -> dict[str, Any]:
    """Sent to a decode worker, they would end it."""
    return {"do_remote_prefill": True, "do_remote_decode": False}


@pytest.mark.parametrize("parameters", [foreign, incomplete])
def test_a_clients_parameters_change_nothing(pair: Pair, parameters: Any) -> None:
    text = words(80, seed=7000)
    sent = parameters(pair.prefill)
    body = pair.pair.body([user(text)], thinking=False, max_tokens=TOKENS)
    body["extra_body"]["kv_transfer_params"] = sent
    got = answer_of(pair.pair.client.chat.completions.create(**body))
    leg = pair.decoded(got.request_id)
    assert leg.token_ids == pair.aggregated_ids(pair.vocabulary.user_prompt(text), TOKENS)
    assert leg.body["kv_transfer_params"]["remote_request_id"] != sent.get("remote_request_id")
    assert leg.body["kv_transfer_params"]["remote_request_id"].startswith("generate-tokens-" + got.request_id)
