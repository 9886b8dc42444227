"""Who may do what, and how much of it at a time."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import os
from collections.abc import Callable, Mapping
from time import monotonic

from gateway.access.keys import Key, Keys, KeysError, digest_of, read_keys
from gateway.access.window import Use, Window
from gateway.serving.errors import RequestError, model_not_found

logger = logging.getLogger(__name__)

RELOAD_SECONDS = 1.0
OPEN_PATHS = frozenset({"/health", "/live", "/ready", "/version", "/metrics"})
OPEN_ADMIN_PATHS = frozenset({"/health"})


class Counters:
    """Of one key; they outlive a change of the file."""

    def __init__(self, key: Key, clock: Callable[[], float]) -> None:
        self.active = 0
        self.requests = Window(key.requests_per_minute or 0, clock)
        self.tokens = Window(key.tokens_per_minute or 0, clock)


class Charge:
    """Tokens that a request has taken beforehand."""

    __slots__ = ("_use", "_window")

    def __init__(self, window: Window, use: Use) -> None:
        self._window = window
        self._use = use

    def settle(self, tokens: int) -> None:
        """So many it really was."""
        self._window.correct(self._use, tokens)


class Grant:
    """What one request may do; `leave` ends it."""

    __slots__ = ("_counters", "key")

    def __init__(self, key: Key, counters: Counters) -> None:
        self.key = key
        self._counters = counters

    def check_model(self, model: str) -> None:
        """Raises RequestError: the key may not use it, which looks as if there were no such model."""
        if not self.may_use(model):
            raise model_not_found(model)

    def may_use(self, model: str) -> bool:
        return not self.key.models or model in self.key.models

    def charge(self, tokens: int) -> Charge | None:
        """Take tokens of this minute. Raises RequestError when there are not so many left."""
        if self.key.tokens_per_minute is None:
            return None
        window = self._counters.tokens
        use = window.take(tokens)
        if isinstance(use, Use):
            return Charge(window, use)
        raise _limited(f"{window.limit} tokens a minute; this request is for {tokens}", use)

    def leave(self) -> None:
        self._counters.active -= 1


class Access:
    """The keys and their counters."""

    def __init__(self, path: str, clock: Callable[[], float] = monotonic) -> None:
        """Raises KeysError."""
        self._path = path
        self._clock = clock
        self._stamp = _stamp(path)
        self._keys: Keys = read_keys(path)
        self._counters: dict[str, Counters] = {}

    def check_admin(self, path: str, headers: Mapping[str, str]) -> None:
        """For the admin API. Raises RequestError unless the path is open or the key is an admin's."""
        if path not in OPEN_ADMIN_PATHS and not self._identify(headers).admin:
            raise RequestError(403, "This API key is not for the admin API.", code="not_an_admin_key")

    def enter(self, path: str, method: str, headers: Mapping[str, str]) -> Grant | None:
        """A grant for a request, which counts if it is a POST; None for paths open to all.

        Raises RequestError.
        """
        if path in OPEN_PATHS:
            return None
        key = self._identify(headers)
        counters = self._counters_of(key)
        if method == "POST":
            if key.concurrency is not None and counters.active >= key.concurrency:
                raise _limited(f"{key.concurrency} requests at the same time", 1.0)
            if key.requests_per_minute is not None:
                use = counters.requests.take(1)
                if not isinstance(use, Use):
                    raise _limited(f"{key.requests_per_minute} requests a minute", use)
        counters.active += 1
        return Grant(key, counters)

    def _identify(self, headers: Mapping[str, str]) -> Key:
        secret = _secret_of(headers)
        if not secret:
            raise _unauthorized("You did not provide an API key.")
        digest = digest_of(secret)
        key = self._keys.get(digest)
        # The look-up is by the hash of what was sent, of which nobody can choose a part.
        if key is None or not hmac.compare_digest(bytes.fromhex(key.sha256), digest):
            raise _unauthorized("Incorrect API key provided.")
        return key

    def _counters_of(self, key: Key) -> Counters:
        counters = self._counters.get(key.name)
        if counters is None:
            counters = self._counters[key.name] = Counters(key, self._clock)
        counters.requests.limit = key.requests_per_minute or 0
        counters.tokens.limit = key.tokens_per_minute or 0
        return counters

    # The file

    async def watch(self) -> None:
        """Read the file again whenever it has changed; runs until it is cancelled."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """A file that cannot be used leaves the keys as they are."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_keys(self._path)
        except KeysError as error:
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("%d API keys from %s", len(self._keys), self._path)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _secret_of(headers: Mapping[str, str]) -> str:
    scheme, _, secret = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return secret.strip()
    return headers.get("x-api-key", "")


def _unauthorized(message: str) -> RequestError:
    return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _limited(limit: str, seconds: float) -> RequestError:
    """`seconds` until it may be tried again; infinity for never."""
    headers = {"x-should-retry": "false"}
    if not math.isinf(seconds):
        headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
    message = f"This API key is limited to {limit}."
    return RequestError(429, message, code="rate_limit_exceeded", headers=headers)
