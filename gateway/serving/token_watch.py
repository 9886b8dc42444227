"""What a request may want of each token by itself: stop rules that count tokens, ids, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from gateway.engines.base import TokenLogprob
from gateway.serving.stops import StopMatcher


class TokenDetail(NamedTuple):
    """One generated token; `logprob` and `top` are there when the request asked for them."""

    token_id: int
    spelling: bytes = b""
    logprob: float | None = None
    top: Sequence[tuple[bytes, float]] = ()
    """The likeliest tokens' bytes and log-probabilities, best first."""


class TokenWatch:
    """Of one choice. Tokens are then parsed one at a time, so that a stop counts those before it alone."""

    __slots__ = ("_hidden", "_min_tokens", "logprobs", "spell", "stop_ids", "stops")

    def __init__(
        self,
        stops: StopMatcher | None = None,
        *,
        stop_ids: Collection[int] = (),
        show_stop: bool = False,
        min_tokens: int = 0,
        spell: Callable[[int], bytes] | None = None,
    ) -> None:
        """`stop_ids` are the request's own; unless `show_stop` their text is not shown. Stop strings that end
        within the first `min_tokens` tokens do not count. With `spell` the emitter is told of each token."""
        self.stops = stops
        self.spell = spell
        self.logprobs: Sequence[TokenLogprob] = ()
        """Of the tokens that come next."""
        self.stop_ids = stop_ids
        self._hidden = () if show_stop else stop_ids
        self._min_tokens = min_tokens
        if stops is not None:
            stops.armed = not min_tokens

    def hides(self, token_id: int) -> bool:
        return token_id in self._hidden

    def count(self, tokens: int) -> None:
        """So many tokens have come, the present one among them."""
        if self.stops is not None and tokens > self._min_tokens:
            self.stops.armed = True

    def look_at(self, token_ids: Sequence[int]) -> Iterator[TokenDetail]:
        logprobs, self.logprobs = self.logprobs, ()
        spell = self.spell
        for place, token_id in enumerate(token_ids):
            if spell is None:
                yield TokenDetail(token_id)
            elif place < len(logprobs):
                _, value, top = logprobs[place]
                yield TokenDetail(token_id, spell(token_id), value, [(spell(one), p) for one, p in top])
            else:
                yield TokenDetail(token_id, spell(token_id))
