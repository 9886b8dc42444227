"""The parts of the proof: which scenarios there are, how they are run, and where a difference may be."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from simulator.tokens import Tokens
from tests.simulator.conformance import http, hybrid, k3, kv, models, pd, sources
from tests.simulator.conformance.comparing import differences, told
from tests.simulator.conformance.kv import Recorded
from tests.simulator.conformance.outputs import Speller
from tests.simulator.conformance.recorded import Message, read_frames
from tests.simulator.conformance.rig import running

Outcomes = dict[str, str]
"""For each scenario what is different, "" for nothing."""
CACHED = "cached_tokens"


class Part(NamedTuple):
    """One folder of recordings."""

    name: str
    run: Callable[[], Coroutine[Any, Any, Outcomes]]
    reasons: Mapping[str, str]
    needs_all: bool = True
    """Whether it needs more than the repository has."""


def parts() -> list[Part]:
    """All of them."""
    return [
        Part("kv", _kv, {}, needs_all=False),
        Part("hybrid_mamba", lambda: _hybrid("hybrid_mamba"), {}, needs_all=False),
        Part("hybrid_swa", lambda: _hybrid("hybrid_swa"), {}, needs_all=False),
        Part("http", _http, http.REASONS, needs_all=False),
        Part("pd", _pd, pd.REASONS),
        Part("k3", _k3, k3.REASONS),
    ]


class _Taker:
    """Compares messages with the recorded ones, byte for byte but for the time in them."""

    def __init__(self, recorded: Recorded) -> None:
        self.outcomes: Outcomes = {}
        self._recorded = recorded

    async def __call__(self, label: str, messages: list[Message]) -> None:
        self.outcomes[label] = compare_messages(messages, self._recorded(label))


def compare_messages(ours: list[Message], theirs: list[Message]) -> str:
    """What is different, in words; "" when all bytes are equal but for the times."""
    if [one.timeless for one in ours] == [one.timeless for one in theirs]:
        return ""
    if len(ours) != len(theirs):
        return f"{len(ours)} messages instead of {len(theirs)}"
    found = [
        difference
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True))
        for difference in differences([a.sequence, a.events], [b.sequence, b.events], str(place))
    ]
    return told(found) or "other bytes for the same values"


async def _kv() -> Outcomes:
    recorded = Recorded(sources.folder("kv"))
    take = _Taker(recorded)
    async with running(models.ids_only(), num_blocks=512) as rig:
        await kv.first_life(rig, recorded, take)
        await kv.second_life(rig, recorded, take)
    return take.outcomes


async def _hybrid(name: str) -> Outcomes:
    model, recorded = hybrid.MODELS[name], Recorded(sources.folder(name))
    take = _Taker(recorded)
    async with running(models.ids_only(), num_blocks=512, kv_groups=model.kv_groups) as rig:
        cached = await hybrid.scenarios(rig, recorded, take)
    known = {label: cached[label] for label in model.cached}
    return take.outcomes | {CACHED: told(differences(known, model.cached))}


async def _http() -> Outcomes:
    folder, complete = sources.folder("http"), sources.has_all()
    tokens = models.tiny(sources.MODELS) if complete else models.ids_only()
    labels = http.labels(folder) if complete else sources.PACKED_HTTP
    speller, outcomes = Speller(tokens), {}
    async with running(tokens, **http.SETTINGS) as rig:
        for label in labels:
            outcomes[label] = await http.replay(rig, http.read_exchange(folder, label), tokens, speller)
    return outcomes


async def _pd() -> Outcomes:
    tiny, kimi = models.tiny(sources.MODELS), models.tiny_kimi(sources.MODELS)
    return {
        **await _pair(tiny, pd.FIRST_PAIR, "fail", disable_scale_out=True),
        **await _pair(tiny, pd.SECOND_PAIR, "recompute"),
        **await _pair(kimi, pd.KIMI_PAIR, "fail"),
    }


async def _pair(tokens: Tokens, patterns: list[str], policy: str, **settings: object) -> Outcomes:
    folder, outcomes = sources.folder("pd"), {}
    common = pd.SETTINGS | {"model": "tiny", "kv_load_failure_policy": policy} | settings
    async with (
        running(tokens, role="prefill", **common) as prefill,
        running(tokens, role="decode", **common) as decode,
    ):
        pair = pd.Pair(prefill, decode, tokens)
        for leg in pd.legs(folder, patterns):
            outcomes[leg.label] = await pair.replay(leg)
            if leg.label == pd.EVENTS_AFTER:
                for side, rig in (("prefill", prefill), ("decode", decode)):
                    label = f"nixl_kv_{side}_side"
                    recorded = read_frames(folder / f"{label}.frames")
                    outcomes[label] = compare_messages(await rig.messages(), recorded)
    return outcomes


async def _k3() -> Outcomes:
    folder, outcomes = sources.folder("k3"), {}
    for file, make in ((k3.PARSERS, models.tiny_kimi), (k3.TIKTOKEN, models.tiny_kimi_tiktoken)):
        tokens = make(sources.MODELS)
        async with running(tokens, **k3.SETTINGS[file]) as rig:
            for chat in k3.chats(folder, file):
                outcomes[chat.label] = await k3.replay(rig, chat, tokens)
    return outcomes
