"""A chat stream whose chunks also tell of their tokens: log-probabilities, the usage so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.chat_render import ChatStream
from gateway.api.head import Head
from gateway.api.logprobs import chat_entry
from gateway.api.usage import Usage
from gateway.serving.job import Details
from gateway.serving.token_watch import TokenDetail
from parsers.base import Finish, OutputEvent

_END = b"}]}\n\n"
_AFTER_DELTA = b'},"finish_reason":null'


class DetailedChatStream(ChatStream):
    """What tokens bring waits for the next chunk of their choice, at the latest its last one."""

    def __init__(self, head: Head, details: Details) -> None:
        super().__init__(head.id, head.created, head.model)
        self._details = details
        self._prompt_tokens = head.prompt_tokens
        self._tokens = 0
        self._entries: dict[int, list[dict[str, Any]]] = {}
        self._ids: dict[int, list[int]] = {}
        """Tokens of each choice that no chunk has told of yet."""
        self._last: dict[int, list[int]] = {}
        """The last one that was told of."""

    def on_token(self, index: int, token: TokenDetail) -> None:
        self._tokens += 1
        if self._details.logprobs is not None:
            entry = chat_entry(token, self._details.logprobs)
            self._entries.setdefault(index, []).append(entry)
        if self._details.token_ids:
            self._ids.setdefault(index, []).append(token.token_id)

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        if index not in self._heads:
            self._open(index)
            self._extend(b"")
        for event in events:
            before = len(self._pending)
            super().emit(index, [event])
            if len(self._pending) > before:
                if self._details.token_ids and not isinstance(event, Finish):
                    self._tell_ids(index)
                self._extend(self._logprobs(index))

    def finish_chunk(self, index: int, usage: Usage | None = None) -> None:
        super().finish_chunk(index, usage)
        self._extend(self._logprobs(index))

    def _extend(self, members: bytes) -> None:
        """Write `members` into the choice of the last chunk, and the usage so far beside its choices."""
        usage = b',"usage":%b' % self._usage() if self._details.usage else b""
        self._pending[-1] = b"%b%b}]%b}\n\n" % (self._pending[-1].removesuffix(_END), members, usage)

    def _tell_ids(self, index: int) -> None:
        """The vendor's way of saying which tokens a chunk comes from; a token may give several chunks."""
        ids = self._ids.pop(index, None) or self._last.get(index)
        if ids is None:
            return  # the worker sends text
        self._last[index] = ids[-1:]
        told = b',"internal_content":{"token_ids":%b}' % msgspec.json.encode(ids)
        before, after, rest = self._pending[-1].rpartition(_AFTER_DELTA)
        self._pending[-1] = before + told + after + rest

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
        stream = ChatStream(head.id, head.created, head.model)
    else:
        stream = DetailedChatStream(head, head.details)
    stream.only_reasons = head.strict_vendor
    return stream
