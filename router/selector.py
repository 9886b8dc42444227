"""The router: value messages in, placements out. Not thread-safe; no call blocks or awaits."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from random import Random

import msgspec

from router.cost import CostConstants, CostModel
from router.events import KvEvent
from router.explain import Explainer, Explanation
from router.hashing import PrefixHasher
from router.index import IndexStats, PrefixIndex
from router.load import LoadBook, OverlapCounts
from router.messages import (
    FirstToken,
    NoWorkerError,
    Placement,
    Release,
    Role,
    RouteRequest,
    WorkerInfo,
    WorkerKey,
)
from router.policy import Target, make_policy
from router.rules import Prompt, RuleKeeper
from router.variants import Found, eligible_pools, find_overlaps, without_overlaps

_NOTHING = Found({}, 0)


class TargetStats(msgspec.Struct, frozen=True):
    """One worker rank, for metrics."""

    key: WorkerKey
    available: bool
    sequences: int
    waiting: int
    queued_tokens: int
    context_tokens: int
    indexed_blocks: int
    hit_rule: str
    """How its cached tokens are predicted."""
    hit_rule_switches: int
    suspect_hits: int
    """Reported hits that the states it announced do not allow."""
    hashing: str
    """What its blocks are placed by."""
    problem: str
    """Why its blocks are not all placed; empty when they are."""


class RouterStats(msgspec.Struct, frozen=True):
    """What `Router.snapshot_stats` gives."""

    policy: str
    routed: int
    refused: int
    """Requests without an eligible worker."""
    open_reservations: int
    ignored_releases: int
    """First tokens and releases of reservations that were not open."""
    ignored_events: int
    """Event batches and clears of ranks that were not known."""
    overlap: OverlapCounts
    index: IndexStats
    targets: list[TargetStats]


class _Worker:
    __slots__ = ("available", "info", "targets")

    def __init__(self, info: WorkerInfo, targets: list[Target]) -> None:
        self.info = info
        self.targets = targets
        self.available = True


class Router:
    """Chooses a worker rank for each prompt and accounts for it until it is released."""

    def __init__(
        self,
        policy: str = "kv",
        seed: int | None = None,
        *,
        costs: CostConstants | None = None,
        max_blocks: int = 4_000_000,
    ) -> None:
        """`seed` fixes the prefix hashes and the random choices; leave it out in production.

        `max_blocks` bounds the prefix index (about 200 bytes an entry). Raises ValueError on an unknown
        policy.
        """
        seed = secrets.randbits(64) if seed is None else seed
        self._random = Random(seed)
        self._policy_name = policy
        self._cost = CostModel(costs or CostConstants())
        self._policy = make_policy(policy, self._cost, self._random)
        self._index = PrefixIndex(PrefixHasher(seed), max_blocks)
        self._rules = RuleKeeper(self._index)
        self._loads = LoadBook()
        self._workers: dict[str, _Worker] = {}
        self._targets: dict[WorkerKey, Target] = {}
        self._serving: dict[tuple[str, Role, frozenset[str] | None], list[Target]] = {}
        """Available targets by (model, role, pools), filled on demand; emptied when the fleet changes."""
        self._apart = False
        """Some workers do prefill or decode alone."""
        self._routed = 0
        self._refused = 0
        self._ignored_events = 0

    def add_worker(self, info: WorkerInfo) -> None:
        """Make a worker eligible. A worker of that name is replaced: its blocks are forgotten."""
        self.remove_worker(info.worker)
        targets = []
        for rank in range(info.dp_ranks):
            key = WorkerKey(info.worker, rank)
            target = Target(
                info, key, self._loads.load_of(key), self._index.open(key), last_used=-self._random.random()
            )
            self._rules.open(key)
            self._targets[key] = target
            targets.append(target)
        self._workers[info.worker] = _Worker(info, targets)
        self._fleet_changed()

    def remove_worker(self, name: str) -> None:
        """Forget a worker and its blocks at once; its open reservations stay releasable. Unknown is fine."""
        worker = self._workers.pop(name, None)
        if worker is None:
            return
        for target in worker.targets:
            del self._targets[target.key]
            self._rules.close(target.key)
            self._index.close(target.source)
            self._loads.drop(target.key)
        self._fleet_changed()

    def set_available(self, name: str, available: bool) -> None:
        """Health: an unavailable worker gets no requests and keeps its blocks. Unknown is fine."""
        worker = self._workers.get(name)
        if worker is not None and worker.available != available:
            worker.available = available
            self._fleet_changed()

    def route(self, request: RouteRequest) -> Placement:
        """Choose a rank and reserve a place on it.

        Raises NoWorkerError, and TypeError when the token ids are not uint32.
        """
        targets = self._eligible(request)
        decode = request.role == "decode"
        found = self._find(request, targets)
        target = self._policy.choose(targets, found.overlaps, found.prompt_tokens)
        self._routed += 1
        target.last_used = self._routed
        prompt_tokens, overlap = found.tokens(target), found.overlap(target)
        reservation = self._loads.reserve(target.load, prompt_tokens, prompt_tokens if decode else overlap)
        looked_up = found.looked_up(target)
        if looked_up is not None:
            token_ids, match = looked_up
            prompt = Prompt(token_ids, request.cache_salt, request.lora)
            self._rules.placed(reservation, target.source, match, prompt)
        return Placement(
            reservation=reservation,
            target=target.key,
            overlap_tokens=overlap,
            best_overlap_tokens=found.best_overlap(targets),
            pool=target.info.pool,
        )

    def explain(self, request: RouteRequest) -> Explanation:
        """What `route` would do with the request and why. Nothing is reserved or counted."""
        targets = self._candidates(request)
        found = self._find(request, targets)
        roomy = _roomy(targets)
        chosen = None
        if roomy:
            state = self._random.getstate()
            chosen = self._policy.choose(roomy, found.overlaps, found.prompt_tokens)
            self._random.setstate(state)
        considered = {target.key.worker for target in targets}
        explainer = Explainer(self._policy_name, self._cost, self._rules, found)
        return Explanation(
            policy=self._policy_name,
            chosen=None if chosen is None else chosen.key,
            candidates=explainer.candidates(targets, roomy, chosen),
            left_out={
                name: _reason(worker, request)
                for name, worker in self._workers.items()
                if name not in considered
            },
        )

    def prefers_pair(self, request: RouteRequest) -> bool:
        """Whether a prefill worker and a decode worker should serve a request instead of one for both.

        `request.role` is not looked at. Where there are both kinds, the one that costs fewer seconds.
        """
        if not self._apart:
            return False
        prefill = self._unexcluded(request, "prefill")
        decode = self._unexcluded(request, "decode")
        if not prefill and not decode:
            return False
        aggregated = self._unexcluded(request, "aggregated")
        if not (prefill and decode and aggregated):
            return bool(prefill and decode) or (not aggregated and bool(prefill or decode))
        found = find_overlaps(self._index, request, [*prefill, *aggregated])
        pair = self._cheapest(prefill, found) + self._cheapest(decode, _NOTHING)
        return pair < self._cheapest(aggregated, found)

    def first_token(self, message: FirstToken) -> None:
        """The prefill of a reservation is over."""
        self._loads.first_token(message.reservation, message.cached_tokens)

    def release(self, message: Release) -> None:
        """A reservation is over. A second release is counted and ignored."""
        reported = self._loads.release(message.reservation, message.cached_tokens)
        self._rules.released(message.reservation, message.output_tokens, reported)

    def apply(self, key: WorkerKey, events: Iterable[KvEvent]) -> None:
        """Take in a rank's KV events in the order of publication. An unknown rank's are only counted."""
        target = self._targets.get(key)
        if target is None:
            self._ignored_events += 1
        else:
            self._index.apply(target.source, events)

    def clear(self, key: WorkerKey) -> None:
        """The rank holds nothing now (restart, lost track)."""
        target = self._targets.get(key)
        if target is None:
            self._ignored_events += 1
        else:
            self._index.clear(target.source)

    def snapshot_stats(self) -> RouterStats:
        """Copies of all counters."""
        return RouterStats(
            policy=self._policy_name,
            routed=self._routed,
            refused=self._refused,
            open_reservations=self._loads.open_reservations,
            ignored_releases=self._loads.ignored,
            ignored_events=self._ignored_events,
            overlap=msgspec.structs.replace(self._loads.overlap),
            index=self._index.stats(),
            targets=[
                self._target_stats(target, worker.available)
                for worker in self._workers.values()
                for target in worker.targets
            ],
        )

    def _fleet_changed(self) -> None:
        self._serving.clear()
        self._apart = any(worker.info.role != "aggregated" for worker in self._workers.values())

    def _cheapest(self, targets: Sequence[Target], found: Found) -> float:
        return min(
            self._cost.seconds(
                target.load, max(found.prompt_tokens - found.overlaps.get(target.source, 0), 0)
            )
            for target in targets
        )

    def _unexcluded(self, request: RouteRequest, role: Role) -> Sequence[Target]:
        targets: Sequence[Target] = self._available(request.model, role, eligible_pools(request))
        if request.exclude:
            targets = [target for target in targets if target.key.worker not in request.exclude]
        return targets

    def _find(self, request: RouteRequest, targets: Sequence[Target]) -> Found:
        # A decode worker is sent the prompt's KV cache: it computes none of it, wherever it is held.
        if request.role == "decode":
            return without_overlaps(request)
        return find_overlaps(self._index, request, targets)

    def _candidates(self, request: RouteRequest) -> Sequence[Target]:
        targets = self._unexcluded(request, request.role)
        return self._with_prefill(request, targets) if request.role == "decode" else targets

    def _eligible(self, request: RouteRequest) -> Sequence[Target]:
        targets = self._candidates(request)
        if not targets:
            self._refused += 1
            raise NoWorkerError(self._reasons(request))
        return _roomy(targets)

    def _with_prefill(self, request: RouteRequest, targets: Sequence[Target]) -> Sequence[Target]:
        """Of several pools, those where a prefill worker is up too: a KV cache never leaves its pool."""
        if len({target.info.pool for target in targets}) < 2:
            return targets
        pools = {target.info.pool for target in self._unexcluded(request, "prefill")}
        return [target for target in targets if target.info.pool in pools]

    def _available(self, model: str, role: Role, pools: frozenset[str] | None) -> list[Target]:
        targets = self._serving.get((model, role, pools))
        if targets is None:
            targets = [
                target
                for worker in self._workers.values()
                if worker.available and worker.info.role == role and model in worker.info.models
                if pools is None or worker.info.pool in pools
                for target in worker.targets
            ]
            if targets:
                self._serving[model, role, pools] = targets
        return targets

    def _target_stats(self, target: Target, available: bool) -> TargetStats:
        load, evidence = target.load, self._rules.of(target.key)
        return TargetStats(
            key=target.key,
            available=available,
            sequences=load.sequences,
            waiting=load.waiting,
            queued_tokens=load.queued_tokens,
            context_tokens=load.context_tokens,
            indexed_blocks=target.source.blocks,
            hit_rule=self._rules.shown(target.source),
            hit_rule_switches=evidence.switches,
            suspect_hits=evidence.suspect_hits,
            hashing=target.source.hashing,
            problem=target.source.problem,
        )

    def _reasons(self, request: RouteRequest) -> str:
        if not self._workers:
            return "there are no workers"
        return "; ".join(f"{name}: {_reason(worker, request)}" for name, worker in self._workers.items())


def _roomy(targets: Sequence[Target]) -> Sequence[Target]:
    """Those that would run another sequence at once; all when none would."""
    return [target for target in targets if target.load.sequences < target.capacity] or targets


def _reason(worker: _Worker, request: RouteRequest) -> str:
    """Why a worker that was left out was left out."""
    if request.model not in worker.info.models:
        return f"does not serve {request.model!r}"
    pools = eligible_pools(request)
    if pools is not None and worker.info.pool not in pools:
        return f"its pool is {worker.info.pool!r}, not one of {', '.join(sorted(pools))}"
    if worker.info.role != request.role:
        return f"its role is {worker.info.role!r}, not {request.role!r}"
    if not worker.available:
        return "not available"
    if worker.info.worker in request.exclude:
        return "failed this request already"
    if request.role == "decode" and worker.targets:
        return "no prefill worker of its pool is up"
    return "has no ranks"
