"""The sequencer against a publisher: whatever is lost, late, repeated or restarted, EXACT is never a lie."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.sequencer import Action, Clear, Deliver, FeedState, Replay, Sequencer


class PublisherMachine(RuleBasedStateMachine):
    @initialize(can_replay=st.booleans(), kept=st.integers(1, 6))
    def begin(self, can_replay: bool, kept: int) -> None:
        self.can_replay = can_replay
        self.kept = kept
        self.life = 0
        self.published: list[bytes] = []
        self.wire: deque[tuple[int, bytes]] = deque()
        """Live messages on their way."""
        self.answer: deque[tuple[int, bytes]] | None = None
        """The replay's messages on their way; the end follows."""
        self.applied: list[bytes] = []
        """By the subscriber, since the last clear."""
        self.connected = False
        self.sequencer = Sequencer(can_replay, buffer_limit=3)

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Deliver):
                self.applied.append(action.payload)
            elif isinstance(action, Clear):
                self.applied.clear()
            else:
                self.serve(action)

    def serve(self, request: Replay) -> None:
        numbered = list(enumerate(self.published))
        self.answer = deque(numbered[max(request.start, len(numbered) - self.kept) :])

    @rule()
    def publish(self) -> None:
        payload = f"life {self.life} batch {len(self.published)}".encode()
        if self.connected:
            self.wire.append((len(self.published), payload))
        self.published.append(payload)

    @precondition(lambda self: self.wire)
    @rule()
    def deliver(self) -> None:
        self.carry_out(self.sequencer.live(*self.wire.popleft()))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        del self.wire[data.draw(st.integers(0, len(self.wire) - 1))]

    @precondition(lambda self: self.answer is not None)
    @rule()
    def answer_once(self) -> None:
        assert self.answer is not None
        if self.answer:
            self.carry_out(self.sequencer.replayed(*self.answer.popleft()))
        else:
            self.answer = None
            self.carry_out(self.sequencer.replay_ended())

    @precondition(lambda self: self.answer)
    @rule(data=st.data())
    def lose_in_the_answer(self, data: st.DataObject) -> None:
        assert self.answer is not None
        if len(self.answer) > 1:
            del self.answer[data.draw(st.integers(1, len(self.answer) - 1))]

    @precondition(lambda self: self.answer is not None)
    @rule()
    def break_the_answer_off(self) -> None:
        self.answer = None
        self.carry_out(self.sequencer.replay_failed("broken"))

    @precondition(lambda self: not self.connected)
    @rule()
    def connect(self) -> None:
        self.connected = True
        self.carry_out(self.sequencer.connected())

    @precondition(lambda self: self.connected)
    @rule()
    def disconnect(self) -> None:
        self.connected = False
        self.wire.clear()
        self.answer = None
        self.sequencer.disconnected()

    @rule()
    def restart(self) -> None:
        """A restart breaks the connection."""
        if self.connected:
            self.disconnect()
        self.life += 1
        self.published = []

    @precondition(lambda self: self.can_replay)  # without, a restart can hide behind the next number
    @invariant()
    def exact_means_a_whole_beginning_of_this_life(self) -> None:
        if self.sequencer.state is FeedState.EXACT:
            assert self.applied == self.published[: len(self.applied)]

    @precondition(lambda self: self.can_replay)
    @invariant()
    def lives_never_mix(self) -> None:
        assert len({payload.split()[1] for payload in self.applied}) <= 1

    def teardown(self) -> None:
        """Left in peace and heard once more, a subscriber knows what can be known."""
        if not hasattr(self, "sequencer"):
            return
        if not self.connected:
            self.connect()
        for _ in range(3):
            self.publish()
            while self.wire or self.answer is not None:
                if self.answer is not None:
                    self.answer_once()
                else:
                    self.deliver()
        assert self.applied[-1] == self.published[-1]
        if self.can_replay and len(self.published) <= self.kept:
            assert self.applied == self.published or self.sequencer.state is not FeedState.EXACT


PublisherMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSequencer = PublisherMachine.TestCase
