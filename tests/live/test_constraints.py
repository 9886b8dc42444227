"""What becomes of a constraint on a worker that has no tokenizer: a clear refusal."""

from __future__ import annotations

import json

import pytest
from openai import BadRequestError

from tests.live.asker import user
from tests.live.rig import Rig


def test_a_worker_without_a_tokenizer_refuses_a_constraint(rig: Rig) -> None:
    sampling = {"max_tokens": 4, "structured_outputs": {"choice": ["yes"]}}
    status, answer = rig.workers[0].try_generate([1, 2, 3], sampling_params=sampling)
    assert status == 400
    assert "skip_tokenizer_init" in json.loads(answer)["error"]["message"]


def test_the_client_is_told_why(rig: Rig) -> None:
    with pytest.raises(BadRequestError, match="tokenizer"):
        rig.whole([user("Hi")], response_format={"type": "json_object"})
