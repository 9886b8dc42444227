"""An answer that broke off, as a request for its rest: the prompt, and the tokens that are out already."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from gateway.serving.generation import Generation
from gateway.serving.job import Job
from gateway.tokens.prompts import EncodedPrompt

_NEUTRAL = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}


def obstacle(job: Job, generation: Generation) -> str | None:
    """Why nobody else can go on with it, for the client to read; None when somebody can."""
    if job.choices > 1:
        return "it has more than one choice"
    if generation.said is None:
        return "the worker sends no token ids"
    known = min(each.vocabulary for each in (job, *job.others))
    if max(generation.said, default=0) >= known:
        return "the worker sent a token id that does not exist"  # one in a prompt can end the next engine
    if job.constraint is not None:
        return "the state of its constraint cannot be carried over"
    for name, neutral in _NEUTRAL.items():
        if _value(job.sampling, name, neutral) != neutral:
            return f"`{name}` counts tokens that another worker would take for the prompt"
    if "vllm_xargs" in job.sampling:
        return "what `vllm_xargs` does cannot be carried over"
    return None


def how_it_ended(job: Job, said: array[int]) -> str | None:
    """The finish reason of an answer that was over, though its worker did not come to say so."""
    if len(said) >= job.max_tokens:
        return "length"
    if said and len(said) >= _value(job.sampling, "min_tokens", 0):
        ends = _value(job.sampling, "stop_token_ids", [])
        if said[-1] in ends:
            return "stop"
    return None


def continued(job: Job, pool: str, said: array[int]) -> Job:
    """The request for the rest, in the encoding of the pool that began the answer."""
    job = job.of_pool(pool)
    sampling = dict(job.sampling)
    sampling["max_tokens"] = b"%d" % (job.max_tokens - len(said))
    if (least := _value(sampling, "min_tokens", 0)) > 0:
        sampling["min_tokens"] = b"%d" % max(least - len(said), 0)
    return msgspec.structs.replace(
        job,
        prompt=_longer(job.prompt, said),
        sampling=sampling,
        max_tokens=job.max_tokens - len(said),
        others=(),
    )


def _longer(prompt: EncodedPrompt, said: array[int]) -> EncodedPrompt:
    ids = np.concatenate([prompt.ids, np.frombuffer(said, np.uint32)])
    parts = [prompt.ids_json, b",".join(b"%d" % token_id for token_id in said)]
    return EncodedPrompt(ids, parts, prompt.hashes.fork(len(prompt.ids)) if prompt.hashes else None)


def _value(sampling: Mapping[str, bytes], name: str, default: Any) -> Any:
    """A checked field's value."""
    return msgspec.json.decode(sampling[name]) if name in sampling else default
