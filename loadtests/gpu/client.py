"""A plain client: streamed completions by token ids, with the times of their events, and metrics pages."""

from __future__ import annotations

import http.client
import json
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from loadtests.gpu.shapes import END_ID, FIRST_ID

SECONDS = 120.0
KEPT_SECONDS = 2.0
"""A connection that was idle for longer may be closed at the other end."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")


class Answer(msgspec.Struct):
    """What a completion said, and when."""

    text: str = ""
    ids: list[int] = []
    cached: int | None = None
    """Prompt tokens that were cached, as reported."""
    prompt_tokens: int | None = None
    first_seconds: float = 0.0
    """From the request to the first event."""
    seconds: float = 0.0
    logprobs: list[dict[str, float]] = []
    """The most likely tokens of each place."""
    handle: Any = None
    """Parameters of a prefill leg."""
    error: str = ""


class Client:
    """One kept connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)
        self._used = 0.0

    def post(self, body: bytes | Mapping[str, Any], path: str = "/v1/completions") -> Answer:
        """One completion, streamed or not. An HTTP error is in `error`."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        if time.perf_counter() - self._used > KEPT_SECONDS:
            self._connection.close()
            self._connection.connect()
        began = time.perf_counter()
        self._connection.request("POST", path, raw, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = Answer()
        if response.status != 200:
            answer.error = f"{response.status} {response.read(300).decode(errors='replace')}"
            self._connection.close()
        elif "event-stream" in response.headers.get("Content-Type", ""):
            while line := response.readline():
                if line.startswith(b"data: {"):
                    answer.first_seconds = answer.first_seconds or time.perf_counter() - began
                    _take(answer, json.loads(line[6:]))
        else:
            content = response.read()
            answer.first_seconds = time.perf_counter() - began
            _take(answer, json.loads(content))
        self._used = time.perf_counter()
        answer.seconds = self._used - began
        return answer


def body(prompt: list[int], max_tokens: int = 16, **fields: Any) -> dict[str, Any]:
    """A greedy, streamed completion of ids."""
    return {
        "model": "m",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def direct(prompt: list[int], max_tokens: int = 16, **fields: Any) -> dict[str, Any]:
    """The same for a worker, which is to answer with ids."""
    return body(prompt, max_tokens, return_token_ids=True, **fields)


def random_ids(count: int, seed: int) -> list[int]:
    """A prompt that no other seed begins with."""
    return random.Random(seed).choices(range(FIRST_ID, END_ID), k=count)


def _take(answer: Answer, event: dict[str, Any]) -> None:
    for choice in event.get("choices") or ():
        answer.text += choice.get("text") or ""
        answer.ids += choice.get("token_ids") or ()
        answer.logprobs += (choice.get("logprobs") or {}).get("top_logprobs") or ()
    usage = event.get("usage")
    if usage:
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    answer.handle = event.get("kv_transfer_params") or answer.handle
    if "error" in event:
        answer.error = json.dumps(event["error"])


def status(url: str) -> int | None:
    """The HTTP status of a GET; None when nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def get(url: str) -> Any:
    """JSON of a GET."""
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def metrics(base: str, label: str | None = None) -> dict[str, float]:
    """A metrics page: values summed over labels, or the number in one label of each metric that has it."""
    with urllib.request.urlopen(f"{base}/metrics", timeout=30) as response:
        page = response.read().decode()
    found: dict[str, float] = {}
    for line in page.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        name, labels, value = sample.groups()
        if label is None:
            found[name] = found.get(name, 0.0) + float(value)
        elif (text := re.search(rf'\b{label}="(\d+)"', labels or "")) is not None:
            found[name] = float(text[1])
    return found
