"""A client that takes an answer apart and says what is wrong with its form."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec


class Answer(msgspec.Struct):
    """How a request ended."""

    status: int = 0
    text: str = ""
    """Reasoning, content and calls, in one."""
    finish: str | None = None
    usage: tuple[int, int] | None = None
    """Prompt and completion tokens."""
    error: dict[str, Any] | None = None
    """The body of the error, or of the error frame."""
    faults: list[str] = []
    """What a client must never see: chunks after the end, changed ids, half an error."""
    request_id: str = ""
    chunks: int = 0

    @property
    def said(self) -> tuple[str, str | None, tuple[int, int] | None]:
        """What two right answers have in common."""
        return self.text, self.finish, self.usage

    @property
    def is_clear_error(self) -> bool:
        if self.error is None or self.faults:
            return False
        return {"message", "type", "code", "param"} == self.error.keys() and bool(self.error["message"])


class Client:
    """Asks one gateway; each request has a connection of its own."""

    def __init__(self, url: str, seconds: float = 60.0) -> None:
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=seconds)

    async def chat(
        self,
        text: str,
        *,
        model: str = "m",
        stream: bool = True,
        begun: asyncio.Event | None = None,
        **fields: Any,
    ) -> Answer:
        """`begun` is set at the first chunk. A transport error is a fault of the answer."""
        body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream, **fields}
        if stream:
            body["stream_options"] = {"include_usage": True}
        answer = Answer()
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(f"{self._url}/v1/chat/completions", json=body) as response,
            ):
                answer.status = response.status
                answer.request_id = response.headers.get("X-Request-Id", "")
                if response.status != 200:
                    answer.error = msgspec.json.decode(await response.read())["error"]
                elif stream:
                    await _read_stream(response, answer, begun)
                else:
                    _read_whole(msgspec.json.decode(await response.read()), answer)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            answer.faults.append(f"{type(error).__name__}: {error}")
        return answer


def _read_whole(body: dict[str, Any], answer: Answer) -> None:
    choice = body["choices"][0]
    message = choice["message"]
    calls = "".join(
        f"[{call['function']['name']} {call['function']['arguments']}]"
        for call in message.get("tool_calls") or ()
    )
    answer.text = f"{message.get('reasoning_content') or ''}|{message['content'] or ''}|{calls}"
    answer.finish = choice["finish_reason"]
    answer.usage = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]


async def _read_stream(response: aiohttp.ClientResponse, answer: Answer, begun: asyncio.Event | None) -> None:
    reasoning, content, calls = "", "", ""
    heads: set[tuple[str, int, str]] = set()
    done = False
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if done or (answer.error is not None and data != b"[DONE]"):
            answer.faults.append(f"after the end: {data[:80]!r}")
        if data == b"[DONE]":
            done = True
            continue
        chunk = msgspec.json.decode(data)
        if "error" in chunk:
            answer.error = chunk["error"]
            continue
        answer.chunks += 1
        heads.add((chunk["id"], chunk["created"], chunk["model"]))
        if chunk.get("usage"):
            if answer.usage is not None:
                answer.faults.append("usage twice")
            answer.usage = chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            if answer.finish is not None:
                answer.faults.append(f"after the finish: {data[:80]!r}")
            delta = choice["delta"]
            reasoning += delta.get("reasoning_content") or ""
            content += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                calls += f"[{function['name']} " if "name" in function else ""
                calls += function.get("arguments") or ""
            answer.finish = choice["finish_reason"]
        if begun is not None and reasoning + content + calls:
            begun.set()
    answer.text = f"{reasoning}|{content}|{calls + ']' if calls else ''}"
    if not done:
        answer.faults.append("no [DONE]")
    if len(heads) > 1:
        answer.faults.append(f"id, created or model changed: {sorted(heads)}")
