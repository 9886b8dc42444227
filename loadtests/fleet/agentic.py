"""Agents that work in turns, share their kind's system prompt and now and then send out sub-agents."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from loadtests.fleet.request import BlockNames, Request, Segment
from loadtests.fleet.workloads import make_request


class AgenticSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges are (least, most) and uniform; tokens unless said otherwise."""

    sessions: int = 300
    """Agents at work at any time; a new one takes the place of each that is done."""
    ramp: float = 200.0
    """Seconds over which the first of them begin."""
    duration: float = 300.0
    """Seconds during which new requests arrive."""
    kinds: int = 20
    """Kinds of agents, the k-th 1/k as common as the first."""
    system: tuple[int, int] = (15_000, 40_000)
    turns: tuple[int, int] = (10, 60)
    grows: tuple[int, int] = (500, 3_000)
    """What a turn's tools and user add."""
    output: tuple[int, int] = (100, 400)
    pause: tuple[float, float] = (2.0, 20.0)
    """Seconds between an answer and the next turn."""
    fan_out: float = 0.03
    """Chance that a turn sends out sub-agents first."""
    siblings: tuple[int, int] = (4, 16)
    helper_system: int = 8_000
    brief: tuple[int, int] = (1_000, 6_000)
    """What all siblings of a burst are told."""
    task: tuple[int, int] = (200, 1_000)
    helper_turns: tuple[int, int] = (1, 3)


class _Session:
    """One agent, or one sub-agent of `parent`. Its course is its own, whatever order others end in."""

    def __init__(self, number: int, seed: str, parent: _Session | None = None) -> None:
        self.number = number
        self.seed = seed
        self.random = Random(seed)
        self.parent = parent
        self.text: list[Segment] = []
        self.turns = 0
        self.helpers = 0
        """Sub-agents still at work for it."""
        self._count = 0

    def add(self, sizes: tuple[int, int]) -> Segment:
        """Text of its own, at the end."""
        self.text.append(((self.seed, self.fresh()), self.random.randint(*sizes)))
        return self.text[-1]

    def fresh(self) -> int:
        self._count += 1
        return self._count


class Agentic:
    """A closed loop of sessions."""

    def __init__(self, seed: int, block_tokens: int, spec: AgenticSpec | None = None) -> None:
        self.spec = spec or AgenticSpec()
        self._seed = f"agentic {seed}"
        self._names = BlockNames(block_tokens)
        random = Random(self._seed)
        self._systems = [random.randint(*self.spec.system) for _ in range(self.spec.kinds)]
        self._weights = [1 / (kind + 1) for kind in range(self.spec.kinds)]
        self._sessions: dict[int, _Session] = {}
        self._opened = 0
        self._agents = 0

    def start(self) -> Iterable[Request]:
        """Sessions that are under way at all stages, so that the load is steady once all are there."""
        for _ in range(self.spec.sessions):
            session = self._agent()
            for _ in range(session.random.randrange(session.turns)):
                session.turns -= 1
                session.add(self.spec.grows)
                session.add(self.spec.output)
            yield self._turn(session, session.random.uniform(0.0, self.spec.ramp))

    def finished(self, request: Request, now: float) -> Iterable[Request]:
        session = self._sessions[request.session]
        if now >= self.spec.duration:
            return
        session.turns -= 1
        if session.turns > 0:
            yield from self._goes_on(session, now)
            return
        del self._sessions[session.number]
        parent = session.parent
        if parent is None:
            yield self._turn(self._agent(), now)
            return
        parent.helpers -= 1
        if not parent.helpers:
            yield self._turn(parent, now)

    def _goes_on(self, session: _Session, now: float) -> Iterable[Request]:
        begin = now + session.random.uniform(*self.spec.pause)
        if session.parent is None and session.random.random() < self.spec.fan_out:
            yield from self._send_out(session, begin)
        else:
            yield self._turn(session, begin)

    def _send_out(self, parent: _Session, begin: float) -> Iterable[Request]:
        brief = ("brief", parent.seed, parent.fresh()), parent.random.randint(*self.spec.brief)
        parent.helpers = parent.random.randint(*self.spec.siblings)
        for _ in range(parent.helpers):
            helper = self._open(f"{parent.seed} {parent.fresh()}", parent)
            helper.text += [("helper", self.spec.helper_system), brief]
            helper.turns = helper.random.randint(*self.spec.helper_turns)
            helper.add(self.spec.task)
            yield self._request(helper, begin)

    def _agent(self) -> _Session:
        session = self._open(f"{self._seed} {self._agents}")
        self._agents += 1
        kind = session.random.choices(range(self.spec.kinds), self._weights)[0]
        session.text.append((("system", kind), self._systems[kind]))
        session.turns = session.random.randint(*self.spec.turns)
        return session

    def _open(self, seed: str, parent: _Session | None = None) -> _Session:
        session = self._sessions[self._opened] = _Session(self._opened, seed, parent)
        self._opened += 1
        return session

    def _turn(self, session: _Session, arrival: float) -> Request:
        session.add(self.spec.grows)
        return self._request(session, arrival)

    def _request(self, session: _Session, arrival: float) -> Request:
        prompt = list(session.text)
        answer = session.add(self.spec.output)
        return make_request(self._names, arrival, prompt, answer, session.number)
