"""What a client's key lets its request do, applied to the request."""

from __future__ import annotations

import hashlib

import msgspec
from aiohttp import web

from gateway.access.access import Grant
from gateway.serving.job import Prepared
from gateway.serving.request import Fields

GRANT = web.RequestKey("grant", Grant)
"""There when keys are asked for."""

_LIMITS = ("max_completion_tokens", "max_tokens")


def apply_grant(grant: Grant, fields: Fields, body: bytes) -> bytes:
    """The body with the priority that the key allows. Raises RequestError for a model that it does not."""
    grant.check_model(fields.values["model"])
    highest = grant.key.priority
    if highest is None or fields.values.get("priority", highest - 1) >= highest:
        return body
    raw = b"%d" % highest
    fields.values["priority"], fields.top_level["priority"] = highest, raw
    names = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(names | {"priority": msgspec.Raw(raw)})


def check_model(request: web.Request, model: str) -> None:
    """Raises RequestError when the client's key may not use it."""
    grant = request.get(GRANT)
    if grant is not None:
        grant.check_model(model)


def keep_to(grant: Grant, prepared: Prepared, *, salted: bool) -> None:
    """The key's own workers and, `salted`, KV caches of its own: no other key's prompt finds them.

    The client's own salt divides them further. A key has the same salt at every gateway.
    """
    for job in (prepared.job, *prepared.job.others):
        job.labels = grant.key.labels
        if salted:
            text = msgspec.json.encode((grant.key.name, job.cache_salt))
            job.cache_salt = hashlib.blake2b(text, digest_size=16, person=b"kvgateway salt").hexdigest()
            job.top_level["cache_salt"] = msgspec.json.encode(job.cache_salt)


def charge_for(grant: Grant, prepared: Prepared) -> None:
    """Take the tokens of the prompt, and of the answer if the client says how long it may be. Raises
    RequestError when the key has not so many left."""
    prepared.key_name = grant.key.name
    tokens = prepared.readings[0].counted_prompt_tokens
    if any(name in prepared.values for name in _LIMITS):
        tokens += prepared.job.max_tokens * prepared.n
    prepared.charge = grant.charge(tokens)
