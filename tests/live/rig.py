"""Two real workers behind the gateway, and what the tests ask of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openai import OpenAI, Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from loadtests.processes import wait_until
from tests.live.gateway import LiveGateway
from tests.live.vocabulary import Vocabulary
from tests.live.worker import MODEL, LiveWorker, request

EVENTS_SECONDS = 0.5
"""More than KV events need from a worker into the gateway's index."""
COUNT_SECONDS = 5.0
REJOIN_SECONDS = 60.0


class Rig:
    """The gateway, its workers and a client."""

    def __init__(self, home: Path, tokenizer: Path, log_dir: Path) -> None:
        self.vocabulary = Vocabulary(tokenizer)
        self.workers = [LiveWorker(f"worker{number}", home, log_dir) for number in (1, 2)]
        self.gateway = LiveGateway([worker.url for worker in self.workers], tokenizer, log_dir)
        self.client: OpenAI = self.gateway.client()

    def start(self) -> None:
        """All at once: the gateway finds the workers when they come."""
        for worker in self.workers:
            worker.start()
        self.gateway.start()
        for worker in self.workers:
            worker.wait_ready()
        self.wait_connected()

    def stop(self) -> None:
        for process in (self.gateway, *self.workers):
            process.stop()

    def wait_connected(self) -> None:
        """Until the gateway calls both workers ready and follows their KV events."""
        wait_until(
            "the gateway is ready with both workers and their KV events", self._connected, REJOIN_SECONDS
        )

    def _connected(self) -> bool:
        described = self.describe_workers()
        feeds = [feed["state"] for worker in described for feed in worker["feeds"]]
        return [worker["state"] for worker in described] == ["ready"] * 2 and feeds == ["exact"] * 2

    def describe_workers(self) -> list[dict[str, Any]]:
        """What the gateway's admin port says of its workers."""
        status, answer = request(f"{self.gateway.admin_url}/workers")
        assert status == 200, (status, answer)
        workers: list[dict[str, Any]] = json.loads(answer)["workers"]
        return workers

    # asking

    def whole(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatCompletion:
        """One answer; `script`, `delay_ms` and `thinking` as in `body`."""
        answer: ChatCompletion = self.client.chat.completions.create(**self.body(messages, **options))
        return answer

    def stream(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Stream[ChatCompletionChunk]:
        """The same as a stream, with its usage at the end."""
        body = self.body(messages, **options)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        chunks: Stream[ChatCompletionChunk] = self.client.chat.completions.create(**body)
        return chunks

    def body(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        script: str | None = None,
        delay_ms: int = 0,
        thinking: bool = True,
        **fields: Any,
    ) -> dict[str, Any]:
        """`script` is what the worker is made to say, with `delay_ms` before each token."""
        extra: dict[str, Any] = {"chat_template_kwargs": {"thinking": thinking}}
        xargs: dict[str, Any] = {"delay_ms": delay_ms} if delay_ms else {}
        if script is not None:
            xargs["script_ids"] = self.vocabulary.script(script)
        if xargs:
            extra["vllm_xargs"] = xargs
        return {
            "model": MODEL,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": 500,
            "extra_body": extra,
            **fields,
        }

    # watching

    def finished(self) -> list[float]:
        """Requests that each worker finished; for `served_since`."""
        return [worker.finished for worker in self.workers]

    def served_since(self, before: Sequence[float]) -> LiveWorker:
        """The one worker that finished the one request since `before`."""

        def counted() -> bool:
            return sum(self.finished()) >= sum(before) + 1

        wait_until("a worker counts the request", counted, COUNT_SECONDS, every=0.05)
        grown = [w for w, was, now in zip(self.workers, before, self.finished(), strict=True) if now > was]
        assert len(grown) == 1, (before, self.finished())
        return grown[0]

    def settle(self) -> None:
        """Let the KV events of what was served reach the gateway."""
        time.sleep(EVENTS_SECONDS)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def words(count: int, seed: int) -> str:
    """Text of `count` plain words, different for each seed from the first word on."""
    some = ("river", "stone", "paper", "cloud", "engine", "window", "garden", "copper", "silver", "morning")
    return f"Story {seed}:" + "".join(f" {some[(i * i + seed * 7 + i) % len(some)]}{i}" for i in range(count))
