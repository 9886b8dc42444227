"""Who is there: workers with their ranks, which of them may serve a request, and why others may not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from router.messages import Role, RouteRequest, WorkerInfo, WorkerKey
from router.target import Target
from router.variants import eligible_pools


class Member:
    """One worker."""

    __slots__ = ("available", "info", "targets")

    def __init__(self, info: WorkerInfo, targets: list[Target]) -> None:
        self.info = info
        self.targets = targets
        self.available = True


class Roster:
    """All workers by name, all ranks by key."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.targets: dict[WorkerKey, Target] = {}
        self.apart = False
        """Some workers do prefill or decode alone."""
        self._serving: dict[tuple[str, Role, frozenset[str] | None], list[Target]] = {}
        """Available targets by (model, role, pools), filled on demand; emptied when the fleet changes."""

    def add(self, info: WorkerInfo, targets: list[Target]) -> None:
        self.members[info.worker] = Member(info, targets)
        self.targets.update({target.key: target for target in targets})
        self._changed()

    def remove(self, name: str) -> Sequence[Target]:
        """The ranks that left; none when the name is not known."""
        member = self.members.pop(name, None)
        if member is None:
            return ()
        for target in member.targets:
            del self.targets[target.key]
        self._changed()
        return member.targets

    def set_available(self, name: str, available: bool) -> None:
        member = self.members.get(name)
        if member is not None and member.available != available:
            member.available = available
            self._changed()

    def ranks(self) -> Iterator[tuple[Target, bool]]:
        """Every rank, and whether its worker is available."""
        for member in self.members.values():
            for target in member.targets:
                yield target, member.available

    def candidates(self, request: RouteRequest) -> Sequence[Target]:
        """Ranks that may be chosen for the request."""
        targets = self.unexcluded(request, request.role)
        return self._with_prefill(request, targets) if request.role == "decode" else targets

    def unexcluded(self, request: RouteRequest, role: Role) -> Sequence[Target]:
        """Available ranks of a role that have not failed the request."""
        targets: Sequence[Target] = self._available(request.model, role, eligible_pools(request))
        if request.labels:
            targets = [target for target in targets if request.labels.items() <= target.labels]
        if request.exclude:
            targets = [target for target in targets if target.key.worker not in request.exclude]
        return targets

    def reasons(self, request: RouteRequest, considered: Iterable[Target] = ()) -> Mapping[str, str]:
        """By name, why workers without a rank among `considered` were left out."""
        names = {target.key.worker for target in considered}
        return {name: _reason(member, request) for name, member in self.members.items() if name not in names}

    def _changed(self) -> None:
        self._serving.clear()
        self.apart = any(member.info.role != "aggregated" for member in self.members.values())

    def _with_prefill(self, request: RouteRequest, targets: Sequence[Target]) -> Sequence[Target]:
        """Of several pools, those where a prefill worker is up too: a KV cache never leaves its pool."""
        if len({target.info.pool for target in targets}) < 2:
            return targets
        pools = {target.info.pool for target in self.unexcluded(request, "prefill")}
        return [target for target in targets if target.info.pool in pools]

    def _available(self, model: str, role: Role, pools: frozenset[str] | None) -> list[Target]:
        targets = self._serving.get((model, role, pools))
        if targets is None:
            targets = [
                target
                for member in self.members.values()
                if member.available and member.info.role == role and model in member.info.models
                if pools is None or member.info.pool in pools
                for target in member.targets
            ]
            if targets:
                self._serving[model, role, pools] = targets
        return targets


def roomy(targets: Sequence[Target], busy_tokens: float = float("inf")) -> Sequence[Target]:
    """Those that would run another sequence at once, without the busy ones; all when none would.

    Busy is who has so many prompt tokens in its queue, while others have fewer.
    """
    free = [target for target in targets if has_room(target)]
    return [target for target in free if target.load.queued_tokens < busy_tokens] or free or targets


def has_room(target: Target) -> bool:
    """Whether another sequence would run at once."""
    return target.load.sequences < target.capacity


def _reason(member: Member, request: RouteRequest) -> str:
    """Why a worker that was left out was left out."""
    if request.model not in member.info.models:
        return f"does not serve {request.model!r}"
    pools = eligible_pools(request)
    if pools is not None and member.info.pool not in pools:
        return f"its pool is {member.info.pool!r}, not one of {', '.join(sorted(pools))}"
    if member.info.role != request.role:
        return f"its role is {member.info.role!r}, not {request.role!r}"
    if not member.available:
        return "not available"
    if not request.labels.items() <= dict(member.info.labels).items():
        return f"its labels are not {dict(request.labels)}"
    if member.info.worker in request.exclude:
        return "failed this request already"
    if request.role == "decode" and member.targets:
        return "no prefill worker of its pool is up"
    return "has no ranks"
