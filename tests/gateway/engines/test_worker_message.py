"""What of a worker's error text may reach clients and logs."""

from __future__ import annotations

import pytest

from gateway.engines.worker_message import MAX_CHARS, clean


@pytest.mark.parametrize(
    ("message", "cleaned"),
    [
        ("temperature must be non-negative", "temperature must be non-negative"),
        ("use /v1/chat/completions with a/b", "use /v1/chat/completions with a/b"),
        ("no file /srv/models/k3/config.json here", "no file ... here"),
        ("cannot reach http://10.0.0.3:8000/x now", "cannot reach ... now"),
        ("refused by 10.0.0.3:8000", "refused by ..."),
        ("refused by localhost:8000", "refused by ..."),
        (
            "{'type': 'int', 'loc': 'body.n', 'input': 'my secret'}",
            "{'type': 'int', 'loc': 'body.n', 'input': ...",
        ),
        (
            "bad value [type=int, input_value='my secret', input_type=str]",
            "bad value [type=int, input_value= ...",
        ),
        ('Traceback (most recent call last):\n  File "/a/b.py", line 3', "The worker refused this request."),
    ],
)
def test_paths_addresses_tracebacks_and_echoes_stay_out(message: str, cleaned: str) -> None:
    assert clean(message) == cleaned


def test_the_length_is_bounded() -> None:
    assert len(clean("x" * 10**6)) == MAX_CHARS + 3
