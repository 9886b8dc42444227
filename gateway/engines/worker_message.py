"""A worker's error text, fit for clients and for logs."""

from __future__ import annotations

import re

MAX_CHARS = 500
_HIDDEN = re.compile(
    r"[a-z][a-z0-9+.-]*://\S+"  # a URL
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?"  # an address
    r"|\blocalhost:\d+"
    r"|(?<![\w/])/(?!v1/)(?:[\w.@+-]+/)+[\w.@+-]*"  # a path
    r"|\b[A-Za-z]:\\\S+"
)
_ECHO = re.compile(r"(['\"]?\binput(?:_value)?['\"]?\s*[:=]).*", re.DOTALL)
"""Where a validator begins to repeat the request."""


def clean(message: str) -> str:
    """Without paths, addresses, tracebacks and what it repeats of the request; bounded."""
    if "Traceback" in message or 'File "' in message:
        return "The worker refused this request."
    # The patterns look at no more than can come out.
    message = _HIDDEN.sub("...", _ECHO.sub(r"\1 ...", message[: 4 * MAX_CHARS]))
    return message if len(message) <= MAX_CHARS else message[:MAX_CHARS] + "..."
