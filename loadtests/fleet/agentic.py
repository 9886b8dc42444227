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
    """One agent, or one sub-agent of `parent`."""

    def __init__(self, number: int, text: list[Segment], turns: int, parent: _Session | None = None) -> None:
        self.number = number
        self.text = text
        self.turns = turns
        self.parent = parent
        self.helpers = 0
        """Sub-agents still at work for it."""


class Agentic:
    """A closed loop of sessions."""

    def __init__(self, seed: int, block_tokens: int, spec: AgenticSpec | None = None) -> None:
        self.spec = spec or AgenticSpec()
        self._random = Random(f"agentic {seed}")
        self._names = BlockNames(block_tokens)
        self._weights = [1 / (kind + 1) for kind in range(self.spec.kinds)]
        self._systems = [self._random.randint(*self.spec.system) for _ in range(self.spec.kinds)]
        self._sessions: dict[int, _Session] = {}
        self._count = 0

    def start(self) -> Iterable[Request]:
        """Sessions that are under way at all stages, so that the load is steady from the start."""
        for _ in range(self.spec.sessions):
            session = self._agent()
            done = self._random.randrange(session.turns)
            session.turns -= done
            for _ in range(done):
                self._grow(session)
                session.text.append(self._answer())
            yield self._turn(session, self._random.uniform(0.0, sum(self.spec.pause)))

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
        else:
            parent.helpers -= 1
            if not parent.helpers:
                yield self._turn(parent, now)

    def _goes_on(self, session: _Session, now: float) -> Iterable[Request]:
        begin = now + self._random.uniform(*self.spec.pause)
        if session.parent is None and self._random.random() < self.spec.fan_out:
            yield from self._send_out(session, begin)
        else:
            yield self._turn(session, begin)

    def _send_out(self, parent: _Session, begin: float) -> Iterable[Request]:
        brief = (("brief", self._fresh()), self._random.randint(*self.spec.brief))
        parent.helpers = self._random.randint(*self.spec.siblings)
        for _ in range(parent.helpers):
            text: list[Segment] = [("helper", self.spec.helper_system), brief]
            helper = self._open(text, self._random.randint(*self.spec.helper_turns), parent)
            helper.text.append((("task", self._fresh()), self._random.randint(*self.spec.task)))
            yield self._turn(helper, begin, grow=False)

    def _agent(self) -> _Session:
        kind = self._random.choices(range(self.spec.kinds), self._weights)[0]
        return self._open([(("system", kind), self._systems[kind])], self._random.randint(*self.spec.turns))

    def _open(self, text: list[Segment], turns: int, parent: _Session | None = None) -> _Session:
        session = _Session(self._fresh(), text, turns, parent)
        self._sessions[session.number] = session
        return session

    def _turn(self, session: _Session, arrival: float, *, grow: bool = True) -> Request:
        if grow:
            self._grow(session)
        answer = self._answer()
        request = make_request(self._names, arrival, session.text, answer, session.number)
        session.text.append(answer)
        return request

    def _grow(self, session: _Session) -> None:
        session.text.append((("turn", self._fresh()), self._random.randint(*self.spec.grows)))

    def _answer(self) -> Segment:
        return ("answer", self._fresh()), self._random.randint(*self.spec.output)

    def _fresh(self) -> int:
        self._count += 1
        return self._count
