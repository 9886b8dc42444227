"""Log-probabilities out of vLLM's two shapes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.engines.base import EngineRequest, TokenLogprob
from gateway.engines.vllm import WHOLE, completions_body, generate_body
from gateway.engines.vllm_logprobs import LEAST, read_logprobs


def read(logprobs: Any) -> list[Any]:
    choices = [{"index": 1, "token_ids": [7], "logprobs": logprobs}]
    return list(read_logprobs(msgspec.json.encode({"choices": choices, "usage": None})))


def test_entries_of_generate() -> None:
    top = [{"token_id": 7, "logprob": -0.5, "rank": 1}, {"token_id": 9, "logprob": -1, "rank": 2}]
    found = read({"content": [{"token_id": 7, "logprob": -0.5, "rank": 1, "top_logprobs": top}]})
    assert found == [(1, [TokenLogprob(7, -0.5, [(7, -0.5), (9, -1.0)])])]


def test_lists_of_completions_name_tokens_by_id_and_are_ranked() -> None:
    found = read(
        {
            "tokens": ["token_id:7"],
            "token_logprobs": [-2.0],
            "top_logprobs": [{"token_id:7": -2.0, "token_id:9": -1.0}],
            "text_offset": [0],
        }
    )
    assert found == [(1, [TokenLogprob(7, -2.0, [(9, -1.0), (7, -2.0)])])]


def test_an_impossible_token_has_the_least_value() -> None:
    assert read({"tokens": ["token_id:7"], "token_logprobs": [None]}) == [(1, [TokenLogprob(7, LEAST, [])])]
    assert read({"content": [{"token_id": 7, "logprob": -1e30}]}) == [(1, [TokenLogprob(7, LEAST, [])])]


def test_entries_may_name_tokens_by_text_alone() -> None:
    entry = {"token": "token_id:7", "logprob": -0.5, "top_logprobs": [{"token": "token_id:9", "logprob": -1}]}
    assert read({"content": [entry]}) == [(1, [TokenLogprob(7, -0.5, [(9, -1.0)])])]


def test_no_logprobs_are_nothing() -> None:
    assert read(None) == []


def test_a_token_that_is_not_named_by_its_id_cannot_be_read() -> None:
    with pytest.raises(msgspec.DecodeError):
        read({"tokens": ["the"], "token_logprobs": [-1.0]})


def test_each_endpoint_is_asked_in_its_own_words() -> None:
    request = EngineRequest(request_id="r", model="m", token_ids_json=b"1", prompt_tokens=1, logprobs=2)
    generate = msgspec.json.decode(b"".join(generate_body(request, WHOLE)))
    completions = msgspec.json.decode(b"".join(completions_body(request, WHOLE)))
    assert generate["sampling_params"] == {"logprobs": 2}
    assert (completions["logprobs"], completions["return_tokens_as_token_ids"]) == (2, True)
