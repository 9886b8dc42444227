"""HTTP requests of these tests."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple

MODEL = "simulated"
PATIENCE = 60.0


class Asked(NamedTuple):
    """A worker or a router."""

    url: str

    def completion(self, prompt: str, **fields: Any) -> str:
        """The text of a completion."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 200} | fields
        status, answer = ask(self.url + "/v1/completions", body)
        assert status == 200, answer
        text: str = json.loads(answer)["choices"][0]["text"]
        return text

    def chat(self, text: str, **fields: Any) -> dict[str, str]:
        """Reasoning and content of a chat answer, streamed or not."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 400} | fields
        status, answer = ask(self.url + "/v1/chat/completions", body)
        assert status == 200, answer
        if not fields.get("stream"):
            message = json.loads(answer)["choices"][0]["message"]
            return {name: message[name] for name in ("reasoning", "content")}
        return _joined(answer.decode())

    def finished(self) -> float:
        """Requests that a worker finished, by its own metrics."""
        page = ask(self.url + "/metrics")[1].decode()
        lines = [line for line in page.splitlines() if line.startswith("vllm:request_success_total")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def state(self) -> Any:
        """A simulated worker's own view of itself."""
        return json.loads(ask(self.url + "/sim/state")[1])


def ask(url: str, body: Any = None) -> tuple[int, bytes]:
    """GET, or POST of JSON. An error status is an answer too."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def is_up(url: str) -> bool:
    """Whether /health answers with 200."""
    try:
        return ask(url + "/health")[0] == 200
    except OSError:
        return False


def _joined(stream: str) -> dict[str, str]:
    events = [block.removeprefix("data: ") for block in stream.split("\n\n") if block]
    assert events[-1] == "[DONE]"
    said = {"reasoning": "", "content": ""}
    for event in events[:-1]:
        for choice in json.loads(event)["choices"]:
            for name in said:
                said[name] += choice["delta"].get(name) or ""
    return said
