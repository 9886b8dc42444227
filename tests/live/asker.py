"""Asking a gateway with the OpenAI SDK, and answers put together whichever way they came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from openai import OpenAI, Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.live.vocabulary import Vocabulary
from tests.live.worker import MODEL


class Answer(msgspec.Struct):
    """An answer put together, however it came."""

    id: str = ""
    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, str]] = []
    finish: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def request_id(self) -> str:
        """The gateway's id of the request, which the workers are given too."""
        return self.id.partition("-")[2]


class Asker:
    """A client of one gateway."""

    def __init__(self, client: OpenAI, vocabulary: Vocabulary) -> None:
        self.client = client
        self.vocabulary = vocabulary

    def ask(self, messages: Sequence[Mapping[str, Any]], *, streamed: bool, **options: Any) -> Answer:
        """One answer, by a stream or whole; `options` as in `body`."""
        if streamed:
            return joined(self.stream(messages, **options))
        return answer_of(self.whole(messages, **options))

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
        cache_salt: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """`script` is what the worker is made to say, with `delay_ms` before each token."""
        extra: dict[str, Any] = {"chat_template_kwargs": {"thinking": thinking}}
        xargs: dict[str, Any] = {"delay_ms": delay_ms} if delay_ms else {}
        if script is not None:
            xargs["script_ids"] = self.vocabulary.script(script)
        if xargs:
            extra["vllm_xargs"] = xargs
        if cache_salt is not None:
            extra["cache_salt"] = cache_salt
        return {
            "model": MODEL,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": 500,
            "extra_body": extra,
            **fields,
        }


def answer_of(completion: ChatCompletion) -> Answer:
    """What a whole answer says."""
    choice = completion.choices[0]
    answer = Answer(
        id=completion.id,
        reasoning=getattr(choice.message, "reasoning_content", None) or "",
        content=choice.message.content or "",
        calls=[
            {"name": call.function.name, "arguments": call.function.arguments}
            for call in choice.message.tool_calls or ()
            if call.type == "function"
        ],
        finish=choice.finish_reason,
    )
    _count(answer, completion)
    return answer


def joined(chunks: Iterable[ChatCompletionChunk], into: Answer | None = None) -> Answer:
    """What a stream says in all; `into` keeps what came before a stream broke."""
    answer = into or Answer()
    for chunk in chunks:
        answer.id = chunk.id
        _count(answer, chunk)
        for choice in chunk.choices:
            answer.finish = choice.finish_reason or answer.finish
            answer.content += choice.delta.content or ""
            answer.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                if call.index == len(answer.calls):
                    answer.calls.append({"name": call.function.name or "", "arguments": ""})
                answer.calls[call.index]["arguments"] += call.function.arguments or ""
    return answer


def _count(answer: Answer, said: ChatCompletion | ChatCompletionChunk) -> None:
    if said.usage is not None:
        answer.prompt_tokens = said.usage.prompt_tokens
        answer.completion_tokens = said.usage.completion_tokens
        details = said.usage.prompt_tokens_details
        answer.cached_tokens = details.cached_tokens if details is not None else None


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
