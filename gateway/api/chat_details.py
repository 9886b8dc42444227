"""A chat stream whose chunks also tell of their tokens: log-probabilities, the usage so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.chat_render import ChatStream
from gateway.api.head import Head
from gateway.api.logprobs import chat_entry
from gateway.serving.job import Details
from gateway.serving.token_watch import TokenDetail
from parsers.base import OutputEvent

_END = b"}]}\n\n"


class DetailedChatStream(ChatStream):
    """What tokens bring waits for the next chunk of their choice, at the latest its last one."""

    def __init__(self, head: Head, details: Details) -> None:
        super().__init__(head.id, head.created, head.model)
        self._details = details
        self._prompt_tokens = head.prompt_tokens
        self._tokens = 0
        self._entries: dict[int, list[dict[str, Any]]] = {}

    def on_token(self, index: int, token: TokenDetail) -> None:
        self._tokens += 1
        if self._details.logprobs is not None:
            entry = chat_entry(token, self._details.logprobs)
            self._entries.setdefault(index, []).append(entry)

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        if index not in self._heads:
            self._open(index)
            self._extend(b"")
        for event in events:
            before = len(self._pending)
            super().emit(index, [event])
            if len(self._pending) > before:
                self._extend(self._logprobs(index))

    def finish_chunk(self, index: int) -> None:
        super().finish_chunk(index)
        self._extend(self._logprobs(index))

    def _extend(self, members: bytes) -> None:
        """Write `members` into the choice of the last chunk, and the usage so far beside its choices."""
        usage = b',"usage":%b' % self._usage() if self._details.usage else b""
        self._pending[-1] = b"%b%b}]%b}\n\n" % (self._pending[-1].removesuffix(_END), members, usage)

    def _logprobs(self, index: int) -> bytes:
        entries = self._entries.pop(index, None)
        return b"" if entries is None else b',"logprobs":%b' % msgspec.json.encode({"content": entries})

    def _usage(self) -> bytes:
        total = self._prompt_tokens + self._tokens
        return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
            self._prompt_tokens,
            self._tokens,
            total,
        )


def chat_stream(head: Head) -> ChatStream:
    """The plain stream when nothing is asked of its tokens."""
    if head.details is None:
        return ChatStream(head.id, head.created, head.model)
    return DetailedChatStream(head, head.details)
