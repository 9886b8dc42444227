"""curl against the demo, as documentation shows it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")

CHAT: dict[str, Any] = {
    "model": "moonshotai/Kimi-K3",
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 200,
}


def curl(*options: str) -> str:
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "30", *options], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_chat_with_the_body_alone(base_url: str) -> None:
    """curl sends a form's content type unless told otherwise: that is no JSON."""
    refused = json.loads(curl(f"{base_url}/chat/completions", "-d", json.dumps(CHAT)))
    answer = json.loads(curl(f"{base_url}/chat/completions", "--json", json.dumps(CHAT)))
    assert refused["error"]["code"] == "unsupported_media_type"
    assert answer["choices"][0]["message"]["content"]


def test_a_stream_ends_with_done(base_url: str) -> None:
    output = curl("-N", f"{base_url}/chat/completions", "--json", json.dumps(CHAT | {"stream": True}))
    assert output.startswith("data: {")
    assert output.endswith("data: [DONE]\n\n")


def test_headers_of_answers_and_of_what_is_not_there(base_url: str) -> None:
    head = curl("-i", f"{base_url}/chat/completions")
    assert head.startswith("HTTP/1.1 405")
    assert "\nAllow: POST\n" in head
    missing = json.loads(curl(f"{base_url}/nothing"))
    assert missing["error"]["code"] == "unknown_url"
