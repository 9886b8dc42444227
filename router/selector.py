"""The router: value messages in, placements out. Not thread-safe; no call blocks or awaits."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random

import msgspec

from router.assumed import AssumedLimits
from router.beliefs import Beliefs
from router.cost import Congestion, CostConstants, CostModel
from router.events import KvEvent
from router.explain import Explainer, Explanation
from router.hashing import PrefixHasher
from router.index import PrefixIndex
from router.load import LoadBook
from router.messages import (
    FirstToken,
    FullError,
    NoWorkerError,
    Placement,
    Release,
    Role,
    RouteRequest,
    WorkerInfo,
    WorkerKey,
)
from router.options import RouterOptions
from router.policy import make_policy
from router.roster import Roster, has_room, roomy
from router.rules import Prompt, RuleKeeper
from router.sequencer import FeedState
from router.sessions import Sessions
from router.snapshot import Position, SavedSource, head, part
from router.stats import ChoiceCounts, RouterStats, TargetStats
from router.target import Ask, Target
from router.variants import Found, find_overlaps, without_overlaps


class Router:
    """Chooses a worker rank for each prompt and accounts for it until it is released."""

    def __init__(
        self,
        policy: str = "kv",
        seed: int | None = None,
        *,
        costs: CostConstants | None = None,
        clock: Callable[[], float] | None = None,
        max_blocks: int = 4_000_000,
        assumed: AssumedLimits | None = None,
        options: RouterOptions | None = None,
    ) -> None:
        """`seed` fixes the prefix hashes and the random choices; leave it out in production.

        `clock` gives seconds, from any origin; without one, waits shrink only with first tokens and no pace
        is learned. `max_blocks` bounds the prefix index (about 200 bytes an entry); `assumed` bounds what
        ranks without events are taken to hold.
        Raises ValueError on an unknown policy.
        """
        seed = secrets.randbits(64) if seed is None else seed
        self._seed = seed
        self._random = Random(seed)
        self._policy_name = policy
        self._clock = clock or _stopped
        self._cost = CostModel(costs or CostConstants())
        self._policy = make_policy(policy, self._cost, self._random)
        self._index = PrefixIndex(PrefixHasher(seed), max_blocks)
        self._rules = RuleKeeper(self._index)
        self._beliefs = Beliefs(self._index, self._rules, assumed or AssumedLimits(), self._clock)
        self._loads = LoadBook(learns=clock is not None)
        self._roster = Roster()
        self._options = options or RouterOptions()
        self._sessions = Sessions(self._options.session_mode, self._options.session_seconds)
        self._congestion: dict[tuple[str, Role], Congestion] = {}
        """By model and role."""
        self._choices = ChoiceCounts()
        self._routed = 0
        self._refused = 0
        self._ignored_events = 0

    def add_worker(self, info: WorkerInfo) -> None:
        """Make a worker eligible. A worker of that name is replaced: its blocks are forgotten."""
        self.remove_worker(info.worker)
        self._roster.add(info, [self._open(info, rank) for rank in range(info.dp_ranks)])

    def set_feed_state(self, key: WorkerKey, state: FeedState, reason: str = "") -> None:
        """How far a rank's KV events can be trusted, and why not wholly. An unknown rank's is ignored."""
        target = self._roster.targets.get(key)
        if target is not None:
            target.feed, target.feed_reason = state, reason
            self._beliefs.settle(target)

    def remove_worker(self, name: str) -> None:
        """Forget a worker and its blocks at once; its open reservations stay releasable. Unknown is fine."""
        for target in self._roster.remove(name):
            self._beliefs.forget(target)
            self._rules.close(target.key)
            self._index.close(target.source)
            self._loads.drop(target.key)

    def set_available(self, name: str, available: bool) -> None:
        """Health: an unavailable worker gets no requests and keeps its blocks. Unknown is fine."""
        self._roster.set_available(name, available)

    def route(self, request: RouteRequest) -> Placement:
        """Choose a rank and reserve a place on it.

        Raises NoWorkerError (FullError among them), and TypeError when the token ids are not uint32.
        """
        targets = self._eligible(request)
        request = _with_adapter(request, targets)
        found, targets = self._find(request, targets)
        congestion = self._congestion.setdefault((request.model, request.role), Congestion())
        ask = self._ask(request, found, congestion)
        target = self._policy.choose(targets, ask)
        if self._policy_name == "session":
            self._sessions.bind(request, target.key, ask.now)
        congestion.arrival(sum(other.load.waiting > 0 for other in targets) / len(targets))
        self._routed += 1
        target.last_used = self._routed
        best = found.best_overlap(targets)
        self._count_choice(found, target, best)
        return Placement(
            reservation=self._reserve(request, found, target, ask),
            target=target.key,
            overlap_tokens=found.overlap(target),
            best_overlap_tokens=best,
            pool=target.info.pool,
            prefills=found.prefills,
        )

    def explain(self, request: RouteRequest) -> Explanation:
        """What `route` would do with the request and why. Nothing is reserved or counted."""
        targets = self._roster.candidates(request)
        request = _with_adapter(request, targets)
        found, free = self._find(request, self._free(request, targets))
        ask = self._ask(request, found, self._congestion.get((request.model, request.role)))
        chosen = None
        if free:
            state = self._random.getstate()
            chosen = self._policy.choose(free, ask)
            self._random.setstate(state)
        explainer = Explainer(self._policy_name, self._cost, self._rules, found, ask)
        return Explanation(
            policy=self._policy_name,
            chosen=None if chosen is None else chosen.key,
            candidates=explainer.candidates(targets, free, chosen),
            left_out=self._roster.reasons(request, targets),
        )

    @property
    def has_pairs(self) -> bool:
        """Some workers do prefill or decode alone: only then need `prefers_pair` be asked."""
        return self._roster.apart

    def prefers_pair(self, request: RouteRequest) -> bool:
        """Whether a prefill worker and a decode worker should serve a request instead of one for both.

        `request.role` is not looked at. Where there are both kinds, the one that costs fewer seconds, the
        transfer to the decode worker (`request.transfer_seconds`) included.
        """
        if not self._roster.apart:
            return False
        prefill = self._roster.unexcluded(request, "prefill")
        decode = self._roster.unexcluded(request, "decode")
        if not prefill and not decode:
            return False
        aggregated = self._roster.unexcluded(request, "aggregated")
        if not (prefill and decode and aggregated):
            return bool(prefill and decode) or (not aggregated and bool(prefill or decode))
        found = find_overlaps(self._index, self._beliefs, request, [*prefill, *aggregated])
        whole = Ask(found.prompt_tokens, found.expected, self._clock(), loading=found.below)
        fetched = Ask(0, {}, whole.now, transfer=request.transfer_seconds)
        pair = self._cheapest(prefill, whole) + self._cheapest(decode, fetched)
        return pair < self._cheapest(aggregated, whole)

    def first_token(self, message: FirstToken) -> None:
        """The prefill of a reservation is over."""
        self._loads.first_token(message.reservation, message.cached_tokens, self._clock())

    def release(self, message: Release) -> None:
        """A reservation is over. A second release is counted and ignored."""
        reported = self._loads.release(
            message.reservation, message.cached_tokens, self._clock(), failed=message.failed
        )
        self._rules.released(message.reservation, message.output_tokens, reported)
        self._beliefs.ended(message.reservation, reported)

    def apply(self, key: WorkerKey, events: Iterable[KvEvent]) -> None:
        """Take in a rank's KV events in the order of publication. An unknown rank's are only counted."""
        target = self._roster.targets.get(key)
        if target is None:
            self._ignored_events += 1
        else:
            target.unverified = False  # after a restart nothing comes before the old life has shown itself
            self._index.apply(target.source, events)
            if target.source.loose or target.assumed is not None:
                self._beliefs.settle(target)

    def clear(self, key: WorkerKey) -> None:
        """The rank holds nothing now (restart, lost track)."""
        target = self._roster.targets.get(key)
        if target is None:
            self._ignored_events += 1
        else:
            target.unverified = False
            self._index.clear(target.source)
            self._beliefs.clear(target)

    def save(self, positions: Mapping[WorkerKey, Callable[[], Position | None]]) -> Iterator[bytes]:
        """The parts of a snapshot, each made when it is asked for, of the ranks that have a position then."""
        yield head(self._seed)
        for key, position_of in positions.items():
            target, position = self._roster.targets.get(key), position_of()
            if target is not None and position is not None:
                yield part(target.source, position)

    def restore(self, source: SavedSource) -> bool:
        """Take a rank that has just been added to hold what was saved, once its events show that it does."""
        target = self._roster.targets.get(source.key)
        if target is None or target.source.groups or not self._index.restore(target.source, source):
            return False
        target.feed, target.feed_reason = FeedState.DEGRADED, "a snapshot that is not verified yet"
        target.unverified = True
        self._beliefs.settle(target)
        return True

    def snapshot_stats(self) -> RouterStats:
        """Copies of all counters."""
        return RouterStats(
            policy=self._policy_name,
            routed=self._routed,
            refused=self._refused,
            open_reservations=self._loads.open_reservations,
            ignored_releases=self._loads.ignored,
            ignored_events=self._ignored_events,
            choices=msgspec.structs.replace(self._choices),
            overlap=msgspec.structs.replace(self._loads.overlap),
            first_tokens=msgspec.structs.replace(self._loads.first_tokens),
            index=self._index.stats(),
            targets=[self._target_stats(target, available) for target, available in self._roster.ranks()],
        )

    def _open(self, info: WorkerInfo, rank: int) -> Target:
        key = WorkerKey(info.worker, rank)
        source = self._index.open(key)
        self._rules.open(source, info.states_at_ends)
        load = self._loads.load_of(key, info.pool, info.role)
        target = Target(info, key, load, source, last_used=-self._random.random())
        self._beliefs.settle(target)
        return target

    def _eligible(self, request: RouteRequest) -> Sequence[Target]:
        targets = self._roster.candidates(request)
        if not targets:
            self._refused += 1
            reasons = self._roster.reasons(request).items()
            raise NoWorkerError(
                "; ".join(f"{name}: {why}" for name, why in reasons) or "there are no workers"
            )
        free = self._free(request, targets)
        if request.at_once and not has_room(free[0]):
            raise FullError("every worker that could take it runs as many sequences as it can")
        return free

    def _free(self, request: RouteRequest, candidates: Sequence[Target]) -> Sequence[Target]:
        """Of the candidates, those that the choice is among."""
        free = roomy(candidates, self._options.busy_queued_tokens)
        if self._policy_name != "session":
            return free
        return self._sessions.narrowed(request, candidates, free, self._clock())

    def _find(self, request: RouteRequest, targets: Sequence[Target]) -> tuple[Found, Sequence[Target]]:
        """What the targets hold of the prompt, and which of them are left to choose from."""
        if request.role != "decode":
            return find_overlaps(self._index, self._beliefs, request, targets), targets
        if most := self._options.local_prefill_tokens:
            found = find_overlaps(self._index, self._beliefs, request, targets)
            if short := [target for target in targets if found.is_short(target, most)]:
                return found, short
        # A decode worker is sent the prompt's KV cache: it computes none of it, wherever it is held.
        return without_overlaps(request), targets

    def _ask(self, request: RouteRequest, found: Found, congestion: Congestion | None) -> Ask:
        return Ask(
            found.prompt_tokens if found.prefills else 0,
            found.expected,
            self._clock(),
            0.0 if congestion is None else congestion.price,
            request.transfer_seconds,
            found.below,
        )

    def _reserve(self, request: RouteRequest, found: Found, target: Target, ask: Ask) -> int:
        prompt_tokens = found.tokens(target)
        held = found.overlap(target) if found.prefills else prompt_tokens
        reservation = self._loads.reserve(
            target.load,
            prompt_tokens,
            held,
            seconds=self._cost.usual_prefill(prompt_tokens, max(held, found.expected_overlap(target))),
            predicted=self._cost.first_token(target, ask),
            now=ask.now,
        )
        looked_up = found.looked_up(target)
        if looked_up is not None:
            token_ids, match = looked_up
            prompt = Prompt(token_ids, request.cache_salt, request.lora)
            self._rules.placed(reservation, target.source, match, prompt)
            self._beliefs.placed(reservation, target, match, token_ids, request)
        return reservation

    def _count_choice(self, found: Found, target: Target, best: int) -> None:
        self._choices.prompt_tokens += found.tokens(target)
        self._choices.overlap_tokens += found.overlap(target)
        self._choices.best_overlap_tokens += best

    def _cheapest(self, targets: Sequence[Target], ask: Ask) -> float:
        return min(self._cost.seconds(target, ask) for target in targets)

    def _target_stats(self, target: Target, available: bool) -> TargetStats:
        load, evidence = target.load, self._rules.of(target.key)
        state, reason = target.knowledge
        return TargetStats(
            key=target.key,
            available=available,
            sequences=load.sequences,
            waiting=load.waiting,
            queued_tokens=load.queued_tokens,
            context_tokens=load.context_tokens,
            pace=load.pace.factor,
            failures=load.failures.in_a_row,
            indexed_blocks=target.source.blocks,
            assumed_blocks=0 if target.assumed is None else len(target.assumed),
            hit_rule=self._rules.shown(target.source),
            hit_rule_switches=evidence.switches,
            suspect_hits=evidence.suspect_hits,
            hashing=target.source.hashing,
            knowledge=state.value,
            problem=reason,
        )


def _with_adapter(request: RouteRequest, targets: Sequence[Target]) -> RouteRequest:
    """A model that is an adapter of its workers has KV caches of its own."""
    if request.lora is None and targets and request.model in targets[0].info.adapters:
        return msgspec.structs.replace(request, lora=request.model)
    return request


def _stopped() -> float:
    """The clock of a router that has none."""
    return 0.0
