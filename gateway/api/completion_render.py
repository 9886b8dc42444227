"""Events of a plain completion as OpenAI text chunks or as one body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.api.dialects import OPENAI
from gateway.api.head import Head
from gateway.api.logprobs import CompletionLogprobs
from gateway.api.sse import DONE, FrameBuffer, encode_text, stream_prefix
from gateway.api.usage import Usage
from gateway.serving.errors import RequestError
from gateway.serving.token_watch import TokenDetail
from parsers.base import ContentDelta, Finish, OutputEvent, OutputParser

_STOPPED = Finish("stop")


def _logprobs(head: Head) -> list[CompletionLogprobs] | None:
    """One for each choice, when they were asked for."""
    if head.details is None or head.details.logprobs is None:
        return None
    return [CompletionLogprobs(head.details.logprobs) for _ in range(head.choices)]


class CompletionStream(FrameBuffer):
    """Events to server-sent text chunks; the counterpart of `ChatStream`."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self._prefix = stream_prefix(head.id, "text_completion", head.created, head.model)
        self._ends: dict[int, Finish] = {}
        self._logprobs = _logprobs(head)
        self._usage = head.details is not None and head.details.usage
        self._prompt_tokens = head.prompt_tokens
        self._tokens = 0
        self._echoed = head.values.get("echoed", "")
        if self._logprobs is None:
            for index in range(head.choices):
                self.echo(index, self._echoed)

    def on_prompt(self, tokens: Sequence[TokenDetail]) -> None:
        self.echo_with(range(len(self._logprobs or ())), self._echoed, tokens)

    def echo_with(self, choices: Iterable[int], prompt: str, tokens: Sequence[TokenDetail]) -> None:
        """The prompt and its tokens, before each of these choices."""
        assert self._logprobs is not None
        for index in choices:
            for token in tokens:
                self._logprobs[index].add(token)
            self._chunk(index, prompt, None)

    def echo(self, index: int, prompt: str) -> None:
        """The prompt, before a choice's answer."""
        if prompt:
            self._chunk(index, prompt, None)

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        for event in events:
            if isinstance(event, ContentDelta):
                self._chunk(index, event.text, None)
            elif isinstance(event, Finish):
                self._ends[index] = event

    def on_token(self, index: int, token: TokenDetail) -> None:
        self._tokens += 1
        if self._logprobs is not None:
            self._logprobs[index].add(token)

    def end(self, choices: int, usage: Usage | None, own: Sequence[Usage] = ()) -> bytes:
        for index in range(choices):
            self._chunk(index, "", self._ends.get(index, _STOPPED))
        if usage is not None:
            self._pending.append(b'%b],"usage":%b}\n\n' % (self._prefix, msgspec.json.encode(usage)))
        return self.take() + DONE

    def fail(self, error: RequestError) -> bytes:
        return self.take() + OPENAI.last_frames(error)

    def _chunk(self, index: int, text: str, end: Finish | None) -> None:
        logprobs = b"null" if self._logprobs is None else msgspec.json.encode(self._logprobs[index].take())
        chunk = b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b' % (
            self._prefix,
            index,
            encode_text(text),
            logprobs,
            b"null" if end is None else encode_text(end.reason),
        )
        if end is not None and end.stop is not None:
            chunk += b',"stop_reason":%b' % encode_text(end.stop)
        self._pending.append(chunk + (b'}],"usage":%b}\n\n' % self._so_far() if self._usage else b"}]}\n\n"))

    def _so_far(self) -> bytes:
        return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
            self._prompt_tokens,
            self._tokens,
            self._prompt_tokens + self._tokens,
        )


class CompletionWhole:
    """Events to one text_completion body."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._texts: list[list[str]] = [[head.values.get("echoed", "")] for _ in range(head.choices)]
        self._ends = [_STOPPED] * head.choices
        self._logprobs = _logprobs(head)

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        for event in events:
            if isinstance(event, ContentDelta):
                self._texts[index].append(event.text)
            elif isinstance(event, Finish):
                self._ends[index] = event

    def on_token(self, index: int, token: TokenDetail) -> None:
        if self._logprobs is not None:
            self._logprobs[index].add(token)

    def on_prompt(self, tokens: Sequence[TokenDetail]) -> None:
        for logprobs in self._logprobs or ():
            for token in tokens:
                logprobs.add(token)

    def flush(self) -> None:
        """Nothing goes out before the end."""

    def choices(self, first: int = 0) -> list[dict[str, Any]]:
        """The answers, numbered from `first` on."""
        return [
            {
                "index": first + index,
                "text": "".join(text),
                "logprobs": None if self._logprobs is None else self._logprobs[index].take(),
                "finish_reason": end.reason,
                "stop_reason": end.stop,
            }
            for index, (text, end) in enumerate(zip(self._texts, self._ends, strict=True))
        ]

    def body(self, usage: Usage, parsers: Sequence[OutputParser]) -> bytes:
        return completion_body(self._head, self.choices(), usage)


def completion_body(head: Head, choices: Sequence[dict[str, Any]], usage: Usage) -> bytes:
    """A text_completion."""
    return msgspec.json.encode(
        {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": choices,
            "usage": usage,
        }
    )
