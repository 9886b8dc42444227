"""A real vLLM with few blocks, and requests that make use of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from tests.live.worker import LiveWorker
from tests.simulator.conformance.rig import Ask

BLOCK = 32
BUDGET = 256
"""Tokens of a step: prompts are computed in several."""
CONTEXT = 2048


class SmallWorker(LiveWorker):
    """A state group and a full group in a pool that requests of 1,000 tokens fill."""

    blocks = 120

    def options(self) -> dict[str, object]:
        return super().options() | {"max-model-len": CONTEXT, "max-num-batched-tokens": BUDGET}

    def variables(self) -> Mapping[str, str]:
        return {"VLLM_SERVER_DEV_MODE": "1"}  # for /reset_prefix_cache

    def ask(self, ask: Ask) -> int:
        """Run a generation with a script; the cached tokens that it reports."""
        script = {"script_ids": ask.output}
        sampling = {"max_tokens": len(ask.output), "ignore_eos": True, "extra_args": script, "temperature": 0}
        salt: dict[str, Any] = {} if ask.salt is None else {"cache_salt": ask.salt}
        answer = self.generate(ask.prompt, sampling_params=sampling, **salt)
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached


def requests(seed: int, count: int) -> Iterator[Ask]:
    """Fresh, repeated, continued, cut, shared, exact and salted prompts."""
    rng = random.Random(seed)
    known: list[Ask] = []
    for _ in range(count):
        output = _ids(rng, rng.choice([1, 2, 20, 33, 70]))
        kind = rng.choice(["fresh", "repeat", "turn", "cut", "shared", "exact", "salt"])
        old = rng.choice(known) if known else Ask(_ids(rng, 300), output)
        prompt, salt = old.prompt, old.salt
        if kind == "fresh":
            prompt, salt = _ids(rng, rng.randrange(1, 900)), None
        elif kind == "turn":
            prompt = old.prompt + old.output + _ids(rng, rng.randrange(1, 200))
        elif kind == "cut":
            prompt = old.prompt[: rng.randrange(1, len(old.prompt) + 1)]
        elif kind == "shared":
            prompt = old.prompt[: rng.randrange(len(old.prompt) + 1)] + _ids(rng, rng.randrange(1, 300))
        elif kind == "exact":
            prompt = (old.prompt + _ids(rng, BLOCK))[: -(-len(old.prompt) // BLOCK) * BLOCK]
        elif kind == "salt":
            salt = rng.choice(["a", "b"])
        ask = Ask(prompt[: CONTEXT - 100], output, salt)
        known = [*known[-11:], ask]
        yield ask


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, 100_000) for _ in range(count)]
