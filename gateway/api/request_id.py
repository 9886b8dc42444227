"""The id that an answer carries, and that log lines name.

A client's own `X-Request-Id` comes back to it; workers and logs know the gateway's.
"""

from __future__ import annotations

import random
import re
import secrets

from aiohttp import web

HEADER = "X-Request-Id"
MESSAGES = "/v1/messages"
ANTHROPIC_HEADER = "request-id"
"""Where Anthropic's clients look for it."""
_KEY = web.RequestKey("request_id", str)
_VISIBLE = re.compile(r"[!-~]{1,128}")
_random = random.Random(secrets.randbits(128))
"""For ids: unique, not secret; the system's generator costs a call into the kernel each time."""


def new_id(request: web.BaseRequest) -> str:
    """24 hexadecimal digits, which the request keeps."""
    made = f"{_random.getrandbits(96):024x}"
    request[_KEY] = made
    return made


def known_id(request: web.BaseRequest) -> str:
    """The request's id, a new one if it has none yet."""
    return request.get(_KEY) or new_id(request)


def answered_id(request: web.BaseRequest) -> str:
    """What the answer's header says: the client's id if it sent one that can be used."""
    theirs = request.headers.get(HEADER)
    if theirs is not None and _VISIBLE.fullmatch(theirs):
        return theirs
    return known_id(request)


def headers_of(request: web.BaseRequest) -> dict[str, str]:
    """Headers of every answer."""
    answered = answered_id(request)
    if request.raw_path.startswith(MESSAGES):
        return {HEADER: answered, ANTHROPIC_HEADER: answered}
    return {HEADER: answered}
