"""What can be made to go wrong with a worker, by `POST /sim/fault`."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any, Literal

import msgspec

KILLED = 137
"""Exit status as after SIGKILL."""
PARTING_SECONDS = 0.05
"""From an answer to a death that comes after it: time for the bytes to leave."""

Exit = Callable[[int], None]


class FaultSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The faults in force. A request to set some names those alone; null and 0 end one."""

    die: Literal["now", "after_prefill", "after_tokens"] | None = None
    """End the process, connections cut: at once, once the next prefill leg has its answer, or where the token
    after `tokens` more would come out."""
    tokens: int = 0
    freeze_seconds: float | None = None
    """Take requests and answer nothing for that long; -1 is for ever. KV transfers and /sim go on."""
    slow_link: float | None = None
    """Bytes per second of this worker's READs."""
    drop_heartbeats: bool = False
    """Send none, and do not hear those of others."""
    refuse_count: int = 0
    """Answer that many requests for tokens with an error."""
    refuse_seconds: float | None = None
    """The same for that long."""
    refuse_status: int = 503
    """The status of these answers."""
    stale_parameters: int = 0
    """That many prefill legs return the parameters of the leg before them, as far as there was one."""
    event_loss: float = 0.0
    """Share of the KV event batches, 0 to 1, that are not sent. Replay has them."""
    event_lag: float = 0.0
    """Seconds by which KV events come late."""


class Faults:
    """Decides, wherever something could go wrong, whether it does. Times begin when a fault is set."""

    def __init__(self, exit_process: Exit = os._exit, seed: int = 0) -> None:
        self.exit = exit_process
        self.settings = FaultSettings()
        self._random = random.Random(seed)
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._thaw: asyncio.TimerHandle | None = None
        self._refuse_until = 0.0
        self._events_due = 0.0
        self._last_answer: dict[str, Any] | None = None

    def set(self, body: bytes) -> FaultSettings:
        """Set what a JSON object names. Raises msgspec.ValidationError, msgspec.DecodeError."""
        msgspec.json.decode(body, type=FaultSettings)
        named: dict[str, Any] = msgspec.json.decode(body, type=dict)
        old = msgspec.to_builtins(self.settings)
        blank = msgspec.to_builtins(FaultSettings())
        wanted = {name: blank[name] if value is None else value for name, value in named.items()}
        self.settings = msgspec.convert(old | wanted, FaultSettings)
        if "freeze_seconds" in named:
            self._freeze(self.settings.freeze_seconds)
        if "refuse_seconds" in named:
            self._refuse_until = _now() + (self.settings.refuse_seconds or 0.0)
        if self.settings.die == "now":
            asyncio.get_running_loop().call_later(PARTING_SECONDS, self.exit, KILLED)
        return self.settings

    async def thawed(self) -> None:
        """Come back once the worker is not frozen."""
        await self._thawed.wait()

    def refuses(self) -> bool:
        """Whether the next request for tokens gets an error."""
        if self.settings.refuse_count > 0:
            self.settings.refuse_count -= 1
            return True
        return _now() < self._refuse_until

    def produced(self, tokens: int) -> None:
        """Tokens are about to come out; this may be the end."""
        if self.settings.die == "after_tokens":
            if self.settings.tokens < tokens:
                self.exit(KILLED)
            self.settings.tokens -= tokens

    def prefill_answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """What a prefill leg really returns, and whether it is the last thing."""
        last, self._last_answer = self._last_answer, answer
        if self.settings.die == "after_prefill":
            asyncio.get_running_loop().call_later(PARTING_SECONDS, self.exit, KILLED)
        if self.settings.stale_parameters > 0 and last is not None:
            self.settings.stale_parameters -= 1
            self._last_answer = last
            return last
        return answer

    def link_delay(self, nbytes: int) -> float:
        """Seconds that a READ waits for a slow link."""
        return nbytes / self.settings.slow_link if self.settings.slow_link else 0.0

    def send_events(self, send: Callable[[], None]) -> None:
        """Let a batch of KV events go, later or never."""
        if self._random.random() < self.settings.event_loss:
            return
        # Batches stay in order when the lag is made shorter.
        self._events_due = max(_now() + self.settings.event_lag, self._events_due)
        if self._events_due > _now():
            asyncio.get_running_loop().call_at(self._events_due, send)
        else:
            send()

    def _freeze(self, seconds: float | None) -> None:
        if self._thaw is not None:
            self._thaw.cancel()
            self._thaw = None
        if not seconds:
            self._thawed.set()
            return
        self._thawed.clear()
        if seconds > 0:
            self._thaw = asyncio.get_running_loop().call_later(seconds, self._thawed.set)


def _now() -> float:
    return asyncio.get_running_loop().time()
