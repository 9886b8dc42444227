"""Users that hold conversations over streams, for locust.

    kvgateway demo --port 8000 &
    locust -f loadtests/locustfile.py --headless -u 8 -r 4 -t 30s --host http://127.0.0.1:8000

Beside locust's own entry of each request three more appear, all in milliseconds: "first token" (from sending
the request to the first event with text), "inter-token" (between two such events) and "answer" (from sending
to the end). A stream that carries an error, or ends without [DONE], is a failure.
"""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Any

from locust import HttpUser, between, events, task

from loadtests.chat_stream import StreamError, payloads, text_of

PATH = "/v1/chat/completions"
TOPICS = ("rivers", "engines", "paper", "bridges", "clocks", "gardens", "letters", "copper")


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("kvgateway")
    group.add_argument("--model", default="moonshotai/Kimi-K3", help="model that the users ask")
    group.add_argument("--max-tokens", type=int, default=64, help="tokens of an answer, at most")
    group.add_argument("--turns", type=int, default=4, help="turns of a conversation before a new one")
    group.add_argument("--prompt-words", type=int, default=200, help="words of the first turn")


class StreamingUser(HttpUser):
    """Asks, reads the answer to its end, thinks a moment, and asks on with the whole history."""

    wait_time = between(0.1, 1.0)

    def on_start(self) -> None:
        self._messages: list[dict[str, str]] = []

    @task
    def turn(self) -> None:
        self._messages.append({"role": "user", "content": self._question()})
        answer = self._ask()
        self._messages.append({"role": "assistant", "content": answer})
        if len(self._messages) >= 2 * self._option("turns") or not answer:
            self._messages = []

    def _option(self, name: str) -> Any:
        return getattr(self.environment.parsed_options, name)

    def _question(self) -> str:
        if self._messages:
            return f"And what about {random.choice(TOPICS)}?"
        return " ".join(random.choices(TOPICS, k=self._option("prompt_words")))

    def _ask(self) -> str:
        body = {
            "model": self._option("model"),
            "messages": self._messages,
            "max_tokens": self._option("max_tokens"),
            "stream": True,
        }
        start = time.perf_counter()
        with self.client.post(PATH, json=body, stream=True, catch_response=True) as response:
            if response.status_code != 200:
                response.failure(f"{response.status_code}: {response.text[:200]}")
                return ""
            try:
                return self._read(response.iter_lines(chunk_size=None), start)
            except StreamError as error:
                response.failure(str(error))
                return ""

    def _read(self, lines: Iterable[bytes], start: float) -> str:
        said: list[str] = []
        last = start
        for event in payloads(lines):
            text = text_of(event)
            if text:
                now = time.perf_counter()
                self._report("inter-token" if said else "first token", now - last, len(text))
                last = now
                said.append(text)
        self._report("answer", time.perf_counter() - start, sum(map(len, said)))
        return "".join(said)

    def _report(self, name: str, seconds: float, length: int) -> None:
        self.environment.events.request.fire(
            request_type="SSE",
            name=name,
            response_time=seconds * 1000,
            response_length=length,
            exception=None,
            context={},
        )
