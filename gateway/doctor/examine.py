"""Looking at one worker from outside: what it tells, and what it does when it is asked something small."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from gateway.config import Role, WorkerSettings
from gateway.engines.vllm import PARAMETERS
from gateway.fleet.probe import ProbeError, healthy, probe, vitals
from gateway.fleet.vitals import Vitals
from gateway.fleet.worker import KvSource, Profile
from gateway.handoff.nixl_pull import REMOTE_DECODE
from gateway.handoff.side_channel import Shaken, SideChannelError, shake
from router.events import BlockStored, KvEvent
from router.feed import KvFeed
from router.messages import WorkerKey
from router.sequencer import FeedState

CONNECT_SECONDS = 3.0
"""For an event feed to connect and replay."""
EVENT_SECONDS = 3.0
"""From an answer to the events of its blocks."""
REQUEST_SECONDS = 30.0
HANDSHAKE_SECONDS = 3.0
PROBE_BLOCKS = 2
DEFAULT_BLOCK = 64
MAX_ID = 1_000
"""Ids of the doctor's prompts: every vocabulary has them."""


class Events(msgspec.Struct, kw_only=True):
    """What a rank's event feed did."""

    endpoint: str
    replay: str | None
    state: str
    """exact, degraded or approximate, as for the router."""
    reason: str = ""
    connected: bool = False
    replayed: bool | None = None
    """None: there is no replay endpoint."""
    arrived: bool | None = None
    """Blocks of the doctor's request were announced; None: it made none."""
    block_sizes: Mapping[int, int] = {}
    """By group, as announced."""


class Examined(msgspec.Struct, kw_only=True):
    """One worker."""

    name: str
    settings: WorkerSettings
    role: Role
    unreachable: str | None = None
    profile: Profile | None = None
    vitals: Vitals | None = None
    events: Sequence[Events] = ()
    side_channel: str | None = None
    """HOST:PORT, as configured or as its prefill answer said."""
    answer_engine_id: str | None = None
    """Who its prefill answer says that it is."""
    shaken: Shaken | None = None
    handshake_error: str | None = None
    request_error: str | None = None
    lease_seconds: float | None = None
    """How long it really kept the blocks of a prefill that nobody read."""


async def examine(
    session: aiohttp.ClientSession,
    settings: WorkerSettings,
    *,
    requests: bool = True,
    lease_up_to: float | None = None,
) -> Examined:
    """Look at a worker. `requests`: also ask it for a token, to see its events and learn its side channel.

    `lease_up_to`: wait that many seconds at most to see when a prefill's blocks are given up.
    """
    seen = Examined(name=settings.name, settings=settings, role=settings.role)
    seen.unreachable = await healthy(session, settings)
    if seen.unreachable is None:
        try:
            seen.profile = await probe(session, settings)
        except ProbeError as error:
            seen.unreachable = str(error)
    if seen.profile is None:
        return seen
    seen.role = seen.profile.role or settings.role
    seen.vitals = await vitals(session, settings) if seen.profile.engine == "vllm" else None
    seen.side_channel = settings.side_channel
    ask = requests and seen.profile.endpoint != "openai" and not _needs_partner(seen)
    await _watch_events(session, seen, ask=ask)
    if ask and seen.role != "aggregated" and seen.profile.engine == "vllm":
        await _prefill(session, seen, lease_up_to)
    if seen.side_channel is not None:
        try:
            seen.shaken = await shake(seen.side_channel, HANDSHAKE_SECONDS)
        except SideChannelError as error:
            seen.handshake_error = str(error)
    return seen


def _needs_partner(seen: Examined) -> bool:
    """SGLang's halves of a pair do nothing alone."""
    return seen.profile is not None and seen.profile.engine == "sglang" and seen.role != "aggregated"


class _Watch:
    """A rank's feed and what came over it."""

    def __init__(self, name: str, rank: int, source: KvSource) -> None:
        self.source = source
        self.sizes: dict[int, int] = {}
        self.fresh = False
        self.feed = KvFeed(
            WorkerKey(name, rank),
            source.endpoint,
            on_events=self._take,
            on_clear=lambda _: None,
            replay_endpoint=source.replay,
            topic=source.topic,
            replay_timeout=CONNECT_SECONDS,
        )

    def _take(self, _key: WorkerKey, events: Sequence[KvEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self.fresh = True
                self.sizes[event.group] = event.block_size

    def result(self, *, asked: bool) -> Events:
        counters = self.feed.counters
        replayed = None if self.source.replay is None else counters.replays > counters.replay_failures
        return Events(
            endpoint=self.source.endpoint,
            replay=self.source.replay,
            state=self.feed.state.value,
            reason=self.feed.reason,
            connected=counters.connections > 0,
            replayed=replayed,
            arrived=self.fresh if asked else None,
            block_sizes=self.sizes,
        )


async def _watch_events(session: aiohttp.ClientSession, seen: Examined, *, ask: bool) -> None:
    profile = seen.profile
    assert profile is not None
    watches = [_Watch(seen.name, rank, source) for rank, source in profile.kv_sources.items()]
    for watch in watches:
        watch.feed.start()
    try:
        await _until(lambda: all(_followed(watch) for watch in watches), CONNECT_SECONDS)
        if not ask:
            seen.events = [watch.result(asked=False) for watch in watches]
            return
        for watch in watches:
            watch.fresh = False
        for rank in range(max(profile.dp_ranks, 1)):
            await _generate(session, seen, rank)
        asked = seen.request_error is None
        await _until(lambda: all(watch.fresh for watch in watches), EVENT_SECONDS if asked else 0)
        seen.events = [watch.result(asked=asked) for watch in watches]
    finally:
        for watch in watches:
            await watch.feed.stop()


def _followed(watch: _Watch) -> bool:
    """Nothing more is to be waited for."""
    counters = watch.feed.counters
    settled = watch.feed.state is FeedState.EXACT or counters.replay_failures > 0
    return counters.connections > 0 and (settled or watch.source.replay is None)


async def _generate(session: aiohttp.ClientSession, seen: Examined, rank: int) -> dict[str, Any] | None:
    """One token on a prompt of the doctor's own; nothing of it can be cached."""
    return await _post(session, seen, rank, max_tokens=1, extra={})


async def _post(
    session: aiohttp.ClientSession, seen: Examined, rank: int, max_tokens: int, extra: dict[str, Any]
) -> dict[str, Any] | None:
    profile = seen.profile
    assert profile is not None
    block = profile.block_size or DEFAULT_BLOCK
    ids = [secrets.randbelow(MAX_ID) for _ in range(PROBE_BLOCKS * block + 1)]
    path, body, headers = _request(profile, ids, max_tokens, rank)
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    url = f"{seen.settings.url.rstrip('/')}{path}"
    try:
        async with session.post(url, json=body | extra, headers=headers, timeout=timeout) as response:
            text = await response.text()
            if response.status != 200:
                seen.request_error = f"it answered {response.status}: {text[:200]}"
                return None
            answer = msgspec.json.decode(text)
            return answer if isinstance(answer, dict) else None
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
        seen.request_error = f"{type(error).__name__}: {error}"
        return None


def _request(
    profile: Profile, ids: list[int], max_tokens: int, rank: int
) -> tuple[str, dict[str, Any], dict[str, str]]:
    model = profile.models[0]
    if profile.engine == "sglang":
        body: dict[str, Any] = {"input_ids": ids, "sampling_params": {"max_new_tokens": max_tokens}}
        return "/generate", body | ({"routed_dp_rank": rank} if rank else {}), {}
    headers = {"X-data-parallel-rank": str(rank)} if rank else {}
    if profile.endpoint == "generate":
        body = {"model": model, "token_ids": ids, "sampling_params": {"max_tokens": max_tokens}}
        return "/inference/v1/generate", body, headers
    return "/v1/completions", {"model": model, "prompt": ids, "max_tokens": max_tokens}, headers


async def _prefill(session: aiohttp.ClientSession, seen: Examined, lease_up_to: float | None) -> None:
    """A prefill leg: it names the side channel, and pins two blocks until the lease runs out."""
    expired = seen.vitals.transfers.expired if seen.vitals is not None and seen.vitals.transfers else None
    extra = {PARAMETERS: msgspec.json.decode(REMOTE_DECODE)}
    if seen.profile is not None and seen.profile.endpoint == "generate":
        extra["sampling_params"] = {"max_tokens": 1, "extra_args": dict(extra)}  # as `generate_body` does
    answer = await _post(session, seen, 0, max_tokens=1, extra=extra)
    pinned = time.monotonic()
    told = (answer or {}).get(PARAMETERS)
    if not isinstance(told, dict) or not told.get("remote_host"):
        if seen.request_error is None:
            seen.request_error = "a prefill brought no KV parameters: it has no NIXL connector"
        return
    seen.side_channel = f"{told['remote_host']}:{told.get('remote_port')}"
    seen.answer_engine_id = told.get("remote_engine_id")
    if lease_up_to is not None and expired is not None:
        deadline = pinned + lease_up_to
        while time.monotonic() < deadline:
            now = await vitals(session, seen.settings)
            if now is not None and now.transfers is not None and now.transfers.expired > expired:
                seen.lease_seconds = time.monotonic() - pinned
                return
            await asyncio.sleep(min(0.25, lease_up_to / 20))


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - a feed has no event for it
        await asyncio.sleep(0.02)
