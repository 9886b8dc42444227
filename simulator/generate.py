"""`POST /inference/v1/generate`: token ids in, token ids out."""

from __future__ import annotations

from simulator import errors, replies
from simulator.engine import Engine
from simulator.exchange import Exchange, Service, internal_suffix, new_id, wants_usage
from simulator.generation import Generation, Step
from simulator.replies import ChoiceText
from simulator.requests import GenerateBody


class GenerateExchange(Exchange):
    """One generate request."""

    def __init__(self, body: GenerateBody, engine: Engine, service: Service, header_id: str | None) -> None:
        """Raises ApiError for a prompt that cannot be served."""
        planner, tokens, self._model, _ = service
        ids, sampling = body.token_ids or [], body.sampling_params
        assert sampling is not None
        if len(ids) > planner.context_length:
            raise errors.generate_too_long(len(ids), planner.context_length)
        generations = planner.plan(ids, sampling, sampling.extra_args, body.cache_salt, 0)
        request_id = f"generate-tokens-{header_id or body.request_id or new_id()}"
        super().__init__(request_id, engine, generations, len(ids))
        self._request = body
        self._with_usage, self._always_usage = wants_usage(body.stream_options)
        self._texts = [
            ChoiceText(
                tokens,
                skip_special=bool(sampling.skip_special_tokens),
                logprobs=sampling.logprobs,
                ids_as_tokens=False,
                stop=sampling.stop_strings,
            )
            for _ in generations
        ]
        self._first = True

    def chunk(self, step: Step) -> bytes:
        """One step's event."""
        prompt_ids = self._request.token_ids if self._first and self._request.return_token_ids else None
        self._first = False
        usage = replies.step_counts(step) if self._always_usage else None
        return replies.generate_chunk(
            self.request_id, self._request.output_mode, [self._choice(step)], usage, prompt_ids
        )

    def usage_chunk(self) -> bytes:
        """The usage event."""
        if not self._with_usage:
            return b""
        return replies.generate_chunk(self.request_id, self._request.output_mode, [], self.usage.of_stream())

    def whole(self, steps: list[Step]) -> bytes:
        """The whole answer."""
        return replies.generate_body(
            self.request_id,
            self._model,
            self.created,
            self._request.output_mode,
            self.usage,
            [self._choice(step) for step in steps],
            self._request.token_ids if self._request.return_token_ids else None,
            self.kv_transfer_params,
        )

    def internal_id(self, generation: Generation) -> str:
        """The engine's name for a generation."""
        return f"{self.request_id}-{internal_suffix()}"

    def _choice(self, step: Step) -> replies.Json:
        text = self._texts[step.generation.index]
        shown = text.push(step) if self._request.output_mode == "text" else None
        return replies.generate_choice(step, shown, text.token_logprobs(step.ids))
