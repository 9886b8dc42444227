"""`POST /v1/completions`: text or token ids in, text out, with ids when asked for."""

from __future__ import annotations

from simulator import errors, replies
from simulator.engine import Engine
from simulator.exchange import Exchange, Service, internal_suffix, new_id
from simulator.generation import Generation, Step
from simulator.replies import ChoiceText, Json
from simulator.requests import CompletionBody, prompts_of


class CompletionExchange(Exchange):
    """One completions request: `n` choices for each of its prompts."""

    def __init__(self, body: CompletionBody, engine: Engine, service: Service, header_id: str | None) -> None:
        """Raises ApiError for a prompt that cannot be served."""
        planner, tokens, self._model, _ = service
        prompts = [tokens.encode(one) if isinstance(one, str) else one for one in prompts_of(body)]
        script = body.vllm_xargs or body.extra_args
        generations: list[Generation] = []
        for ids in prompts:
            if len(ids) >= planner.context_length:
                raise errors.completion_too_long(planner.context_length)
            generations += planner.plan(ids, body, script, body.cache_salt, len(generations))
        request_id = f"cmpl-{header_id or body.request_id or new_id()}"
        super().__init__(request_id, engine, generations, sum(map(len, prompts)))
        self._request = body
        self._tokens = tokens
        self._with_usage, self._always_usage = service.wants_usage(body.stream_options)
        self._texts = [
            ChoiceText(
                tokens,
                skip_special=bool(body.skip_special_tokens),
                logprobs=body.logprobs,
                ids_as_tokens=bool(body.return_tokens_as_token_ids),
                stop=body.stop_strings,
            )
            for _ in generations
        ]

    def chunk(self, step: Step) -> bytes:
        """One step's event."""
        first, with_ids = step.start == 0, self._request.return_token_ids
        choice = replies.completion_chunk_choice(
            step,
            self._text(step),
            self._logprobs(step),
            step.ids if with_ids else None,
            step.generation.token_ids if with_ids and first else None,
        )
        head = replies.completion_head(self.request_id, self.created, self._model, [choice])
        return replies.sse(head | ({"usage": replies.step_counts(step)} if self._always_usage else {}))

    def usage_chunk(self) -> bytes:
        """The usage event."""
        if not self._with_usage:
            return b""
        head = replies.completion_head(self.request_id, self.created, self._model, [])
        rest = {"usage": self.usage.of_stream(), "system_fingerprint": replies.fingerprint(self._model)}
        return replies.sse(head | rest)

    def whole(self, steps: list[Step]) -> bytes:
        """The whole answer."""
        with_ids = self._request.return_token_ids
        choices = [
            replies.completion_choice(
                step.generation,
                self._text(step),
                self._logprobs(step),
                step.ids if with_ids else None,
                step.generation.token_ids if with_ids else None,
            )
            for step in steps
        ]
        head = replies.completion_head(self.request_id, self.created, self._model, choices)
        return replies.completion_body(head, self._model, self.usage, self.kv_transfer_params)

    def internal_id(self, generation: Generation) -> str:
        """The engine's name for a generation, with the number of its prompt."""
        return f"{self.request_id}-{generation.index // self._request.n}-{internal_suffix()}"

    def _text(self, step: Step) -> str:
        shown = self._texts[step.generation.index].push(step)
        if self._request.echo and step.start == 0:
            return self._tokens.text(step.generation.token_ids) + shown
        return shown

    def _logprobs(self, step: Step) -> Json | None:
        return self._texts[step.generation.index].text_logprobs(step.ids)
