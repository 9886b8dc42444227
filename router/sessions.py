"""Sessions: who has been served by a rank goes to it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from router.messages import Role, RouteRequest, WorkerKey
from router.target import Target

_MOST = 100_000
"""Sessions that are remembered."""

SessionMode = Literal["hard", "soft"]


class _Bound(NamedTuple):
    target: WorkerKey
    until: float


class Sessions:
    """The rank of each session and role, until it has not been used for some time."""

    def __init__(self, mode: SessionMode, seconds: float) -> None:
        self._hard = mode == "hard"
        self._seconds = seconds
        self._bound: OrderedDict[tuple[str, Role], _Bound] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bound)

    def narrowed(
        self, request: RouteRequest, candidates: Sequence[Target], free: Sequence[Target], now: float
    ) -> Sequence[Target]:
        """The session's own rank alone, if it may be chosen: soft while it is free, hard even when not."""
        if request.session is None:
            return free
        bound = self._bound.get((request.session, request.role))
        if bound is None or bound.until < now:
            return free
        among = candidates if self._hard else free
        return [target for target in among if target.key == bound.target] or free

    def bind(self, request: RouteRequest, target: WorkerKey, now: float) -> None:
        """The session has been placed."""
        if request.session is None:
            return
        key = request.session, request.role
        self._bound[key] = _Bound(target, now + self._seconds)
        self._bound.move_to_end(key)
        if len(self._bound) > _MOST:
            self._bound.popitem(last=False)
