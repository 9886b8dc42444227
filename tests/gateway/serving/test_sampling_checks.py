"""Limits that come with the model: a token id that it does not have kills an engine."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.serving.errors import RequestError
from gateway.serving.sampling_checks import check_sampling


@pytest.mark.parametrize(
    ("name", "last", "beyond"),
    [
        ("stop_token_ids", [0, 99], [5, 100]),
        ("allowed_token_ids", [99], [100]),
        ("logit_bias", {"99": 1.0}, {"5": 1.0, "100": -1.0}),
        ("min_tokens", 7, 8),
    ],
)
def test_the_last_id_is_taken_and_the_next_one_refused_by_name(name: str, last: Any, beyond: Any) -> None:
    check_sampling({name: last}, 7, 100)
    with pytest.raises(RequestError) as caught:
        check_sampling({name: beyond}, 7, 100)
    assert (caught.value.status, caught.value.param) == (400, name)
