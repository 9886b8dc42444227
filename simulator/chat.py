"""`POST /v1/chat/completions`: messages in, a message out, through the worker's own format and tokenizer."""

from __future__ import annotations

from parsers.base import EncodedChat, FormatError, OutputOptions
from simulator import chat_replies, errors, replies
from simulator.chat_choice import ChatChoice
from simulator.chat_requests import ChatBody, check_chat
from simulator.engine import Engine
from simulator.errors import ApiError
from simulator.exchange import Exchange, Planner, Service, internal_suffix, new_id
from simulator.generation import Generation, Step
from simulator.replies import ChoiceText, Json
from simulator.tokens import Tokens


class ChatExchange(Exchange):
    """One chat request."""

    def __init__(self, body: ChatBody, engine: Engine, service: Service, header_id: str | None) -> None:
        """Raises ApiError for a chat that cannot be served."""
        planner, tokens, self._model, _ = service
        check_chat(body, planner.context_length)
        ids, encoded = chat_ids(body, planner, tokens)
        sampling = body.sampling(encoded.constraint)
        generations = planner.plan(ids, sampling, body.vllm_xargs, body.cache_salt, 0)
        request_id = f"chatcmpl-{header_id or body.request_id or new_id()}"
        super().__init__(request_id, engine, generations, len(ids))
        self._request = body
        self._tokens = tokens
        self._with_usage, self._always_usage = service.wants_usage(body.stream_options)
        options = OutputOptions(
            thinking=encoded.thinking,
            tools=body.tools,
            tool_choice=body.tool_choice,
            parallel_tool_calls=body.parallel_tool_calls,
        )
        self._texts = [self._text() for _ in generations]
        self._choices = [
            ChatChoice(tokens, text.stream, options, sampling.stop_strings) for text in self._texts
        ]
        self._opened = False

    def chunk(self, step: Step) -> bytes:
        """One step's events; the first opens all choices."""
        opening = b"" if self._opened else self._opening()
        self._opened = True
        return opening + self._step_event(step)

    def usage_chunk(self) -> bytes:
        """The usage event."""
        if not self._with_usage:
            return b""
        head = chat_replies.chunk_head(self.request_id, self.created, self._model, [])
        usage = chat_replies.stream_usage(
            self.usage.counts(), self.usage.cached_tokens, self._created_tokens, self._reasoning_tokens
        )
        return replies.sse(head | {"usage": usage, "system_fingerprint": replies.fingerprint(self._model)})

    def whole(self, steps: list[Step]) -> bytes:
        """The whole answer."""
        choices = [self._choice(step) for step in steps]
        usage = chat_replies.body_usage(
            self.usage.counts(), self.usage.cached_tokens, self._created_tokens, self._reasoning_tokens
        )
        return replies.encode(
            {
                "id": self.request_id,
                "object": "chat.completion",
                "created": self.created,
                "model": self._model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": replies.fingerprint(self._model),
                "usage": usage,
                "prompt_logprobs": None,
                "prompt_token_ids": self._prompt_ids(),
                "prompt_text": None,
                "kv_transfer_params": self.kv_transfer_params,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def internal_id(self, generation: Generation) -> str:
        """The engine's name for a generation."""
        return f"{self.request_id}-{internal_suffix()}"

    def _text(self) -> ChoiceText:
        body = self._request
        return ChoiceText(
            self._tokens,
            skip_special=bool(body.skip_special_tokens) and not self._tokens.marked_up,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            ids_as_tokens=bool(body.return_tokens_as_token_ids),
        )

    def _opening(self) -> bytes:
        rest: Json = {"prompt_token_ids": self._prompt_ids(), "prompt_text": None}
        if self._always_usage:
            reasoning = self._choices[0].reasoning_tokens
            rest = {"usage": chat_replies.chunk_usage(self.usage.prompt_tokens, 0, reasoning)} | rest
        events = []
        for generation in self.generations:
            choice = chat_replies.role_choice(generation.index)
            head = chat_replies.chunk_head(self.request_id, self.created, self._model, [choice])
            events.append(replies.sse(head | rest))
        return b"".join(events)

    def _step_event(self, step: Step) -> bytes:
        index, body = step.generation.index, self._request
        delta = self._choices[index].push(step)
        fields = chat_replies.delta_fields(delta, shows_reasoning=body.shows_reasoning)
        hidden = not body.shows_reasoning
        logprobs = None if hidden else self._texts[index].chat_logprobs(step.ids)
        ids = step.ids if body.return_token_ids and not hidden else None
        if not (fields or step.last or logprobs is not None or ids is not None):
            return b""
        reason = self._finish_reason(step, streamed=True) if step.last else None
        choice = chat_replies.chunk_choice(step, fields, logprobs, reason, ids)
        head = chat_replies.chunk_head(self.request_id, self.created, self._model, [choice])
        return replies.sse(head | self._step_rest(step))

    def _step_rest(self, step: Step) -> Json:
        rest: Json = {}
        if self._always_usage:
            reasoning = self._choices[step.generation.index].reasoning_tokens
            said = step.start + len(step.ids)
            rest["usage"] = chat_replies.chunk_usage(self.usage.prompt_tokens, said, reasoning)
        if step.last and not self._with_usage:
            rest["system_fingerprint"] = replies.fingerprint(self._model)
        return rest

    def _choice(self, step: Step) -> Json:
        index, body = step.generation.index, self._request
        answer = self._choices[index].whole(step)
        empty = None if self._tokens.marked_up and not body.must_call else ""
        said = chat_replies.message(answer, shows_reasoning=body.shows_reasoning, empty=empty)
        hidden = not body.shows_reasoning
        logprobs = None if hidden else self._texts[index].chat_logprobs(step.ids)
        ids = step.ids if body.return_token_ids and not hidden else None
        return chat_replies.body_choice(step, said, logprobs, self._finish_reason(step, streamed=False), ids)

    def _finish_reason(self, step: Step, *, streamed: bool) -> str:
        """A stop after tool calls is called so, but not where the client named the tool."""
        reason, body = step.generation.plan.finish_reason, self._request
        called = self._choices[step.generation.index].called
        if not streamed and body.tool_choice == "required":
            called = True
        return "tool_calls" if reason == "stop" and called and body.named_tool is None else reason

    def _prompt_ids(self) -> list[int] | None:
        return list(self.generations[0].token_ids) if self._request.return_token_ids else None

    @property
    def _created_tokens(self) -> int:
        return max(generation.created_tokens for generation in self.generations)

    @property
    def _reasoning_tokens(self) -> int | None:
        counted = [choice.reasoning_tokens for choice in self._choices]
        return None if None in counted else sum(count or 0 for count in counted)


def chat_ids(body: ChatBody, planner: Planner, tokens: Tokens) -> tuple[list[int], EncodedChat]:
    """A chat's prompt, and what its format says of it. Raises ApiError."""
    try:
        encoded = tokens.model_format.encode(body.chat())
    except FormatError as error:
        raise ApiError(str(error)) from None
    ids = tokens.encode_segments(encoded.segments)
    if len(ids) >= planner.context_length:
        raise errors.completion_too_long(planner.context_length)
    return ids, encoded
