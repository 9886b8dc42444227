from __future__ import annotations

from router.sequencer import Action, Clear, Deliver, FeedState, Replay, Sequencer

EXACT, DEGRADED, APPROXIMATE = FeedState.EXACT, FeedState.DEGRADED, FeedState.APPROXIMATE


def batch(number: int, life: str = "a") -> bytes:
    return f"{life}{number}".encode()


def shown(actions: list[Action]) -> list[str | int]:
    """Payloads delivered, "clear", and the start of a replay."""
    found: list[str | int] = []
    for action in actions:
        if isinstance(action, Deliver):
            found.append(action.payload.decode())
        else:
            found.append("clear" if isinstance(action, Clear) else action.start)
    return found


class Stream:
    """A sequencer that is told of batches by their numbers."""

    def __init__(self, can_replay: bool = True, buffer_limit: int = 100) -> None:
        self.sequencer = Sequencer(can_replay, buffer_limit)

    @property
    def state(self) -> FeedState:
        return self.sequencer.state

    def live(self, *numbers: int, life: str = "a") -> list[str | int]:
        return [item for n in numbers for item in shown(self.sequencer.live(n, batch(n, life)))]

    def replayed(self, *numbers: int, life: str = "a") -> list[str | int]:
        return [item for n in numbers for item in shown(self.sequencer.replayed(n, batch(n, life)))]

    def connected(self) -> list[str | int]:
        return shown(self.sequencer.connected())

    def ended(self) -> list[str | int]:
        return shown(self.sequencer.replay_ended())

    def failed(self) -> list[str | int]:
        return shown(self.sequencer.replay_failed("no answer"))


def started(*numbers: int, can_replay: bool = True) -> Stream:
    """Connected, with these batches applied."""
    stream = Stream(can_replay)
    stream.connected()
    if can_replay:
        stream.replayed(*numbers)
        stream.ended()
    else:
        stream.live(*numbers)
    return stream


def test_states_of_a_beginning() -> None:
    stream = Stream()
    assert stream.state is APPROXIMATE
    assert "not connected" in stream.sequencer.reason
    assert stream.connected() == [0]
    assert stream.state is APPROXIMATE
    assert stream.replayed(0, 1) == ["a0", "a1"]
    assert stream.state is DEGRADED
    assert stream.ended() == []
    assert stream.state is EXACT
    assert stream.sequencer.reason == ""
    assert stream.live(2) == ["a2"]
    stream.sequencer.disconnected()
    assert stream.state is DEGRADED


def test_a_worker_that_has_said_nothing_is_known_exactly() -> None:
    stream = started()
    assert stream.state is EXACT
    assert stream.live(0, 1) == ["a0", "a1"]
    assert stream.state is EXACT


def test_what_arrives_during_the_replay_waits() -> None:
    stream = Stream()
    stream.connected()
    assert stream.live(1, 2, 3) == []
    assert stream.replayed(0, 1, 2) == ["a0", "a1", "a2"]
    assert stream.ended() == ["a3"]
    assert stream.sequencer.counters.repetitions == 2
    assert stream.state is EXACT


def test_history_that_is_gone() -> None:
    stream = Stream()
    stream.connected()
    assert stream.replayed(5, 6) == ["a5", "a6"]
    stream.ended()
    assert stream.state is DEGRADED
    assert "before batch 5" in stream.sequencer.reason
    assert stream.sequencer.counters.lost_batches == 5
    assert stream.live(7) == ["a7"]
    assert stream.state is DEGRADED


def test_a_gap_is_filled_by_a_replay_that_includes_the_last_batch() -> None:
    stream = started(0, 1)
    assert stream.live(4) == [1]
    assert stream.state is DEGRADED
    assert stream.live(5) == []
    assert stream.replayed(1, 2, 3, 4) == ["a2", "a3", "a4"]
    assert stream.ended() == ["a5"]
    assert stream.state is EXACT
    assert (stream.sequencer.counters.gaps, stream.sequencer.counters.lost_batches) == (1, 0)


def test_a_gap_after_a_quiet_replay_is_replayed_too() -> None:
    stream = started()
    assert stream.live(2) == [0]
    assert stream.replayed(0, 1, 2) == ["a0", "a1", "a2"]
    assert stream.ended() == []
    assert stream.state is EXACT


def test_a_gap_that_no_replay_fills_is_lost_and_not_asked_for_again() -> None:
    stream = started(0, 1)
    assert stream.live(4) == [1]
    assert stream.replayed(1) == []
    assert stream.ended() == ["a4"]
    assert stream.state is DEGRADED
    assert stream.sequencer.counters.lost_batches == 2
    assert stream.live(5) == ["a5"]
    assert stream.live(7) == [5]


def test_a_second_gap_in_what_waited_asks_again() -> None:
    stream = started(0)
    assert stream.live(2, 3, 6, 7) == [0]
    assert stream.replayed(0, 1, 2) == ["a1", "a2"]
    assert stream.ended() == ["a3", 3]
    assert stream.replayed(3, 4, 5, 6, 7) == ["a4", "a5", "a6", "a7"]
    assert stream.ended() == []
    assert stream.state is EXACT


def test_a_hole_inside_a_replay_is_lost() -> None:
    stream = started(0)
    assert stream.live(4) == [0]
    assert stream.replayed(0, 1, 3, 4) == ["a1", "a3", "a4"]
    assert stream.ended() == []
    assert stream.state is DEGRADED
    assert stream.sequencer.counters.lost_batches == 1


def test_a_replay_that_begins_too_late_proves_no_life() -> None:
    stream = started(0, 1)
    assert stream.live(9) == [1]
    assert stream.replayed(6, 7, 8, 9) == ["clear", "a6", "a7", "a8", "a9"]
    assert stream.ended() == []
    assert stream.state is DEGRADED
    assert stream.sequencer.counters.lost_batches == 4


def test_the_same_batch_again_is_no_restart() -> None:
    stream = started(0, 1, 2)
    assert stream.live(1, 2) == []
    assert stream.live(3) == ["a3"]
    assert stream.sequencer.counters.repetitions == 2
    assert stream.sequencer.counters.restarts == 0


def test_a_number_that_goes_back_is_a_restart() -> None:
    stream = started(0, 1, 2)
    assert stream.live(0, life="b") == ["clear", "b0"]
    assert stream.state is EXACT
    assert stream.live(1, life="b") == ["b1"]
    assert stream.sequencer.counters.restarts == 1


def test_a_new_life_whose_beginning_was_missed_is_replayed() -> None:
    stream = started(0, 1, 2)
    assert stream.live(1, life="b") == ["clear", 0]
    assert stream.replayed(0, 1, 2, life="b") == ["b0", "b1", "b2"]
    assert stream.ended() == []
    assert stream.state is EXACT


def test_a_batch_older_than_all_history_asks_once() -> None:
    stream = Stream()
    stream.connected()
    stream.replayed(3, 4)
    stream.ended()
    assert stream.live(2) == ["clear", 0]
    assert stream.replayed(3, 4) == ["a3", "a4"]
    assert stream.ended() == []
    assert stream.live(5) == ["a5"]


def test_reconnecting_checks_the_life() -> None:
    stream = started(0, 1, 2)
    stream.sequencer.disconnected()
    assert stream.connected() == [2]
    assert stream.replayed(2, 3) == ["a3"]
    assert stream.ended() == []
    assert stream.state is EXACT
    assert stream.sequencer.counters.restarts == 0


def test_a_longer_new_life_is_told_by_its_payload() -> None:
    stream = started(0, 1, 2)
    stream.sequencer.disconnected()
    assert stream.connected() == [2]
    assert stream.live(4, life="b") == []
    assert stream.replayed(2, life="b") == ["clear", 0]
    assert stream.replayed(0, 1, 2, 3, 4, life="b") == ["b0", "b1", "b2", "b3", "b4"]
    assert stream.ended() == []
    assert stream.state is EXACT


def test_a_shorter_new_life_answers_with_nothing() -> None:
    stream = started(0, 1, 2)
    stream.sequencer.disconnected()
    assert stream.connected() == [2]
    assert stream.ended() == ["clear", 0]
    assert stream.state is APPROXIMATE
    assert stream.ended() == []
    assert stream.state is EXACT
    assert stream.live(0, life="b") == ["b0"]


def test_what_waited_is_not_mixed_into_a_new_life() -> None:
    stream = started(0)
    assert stream.live(2) == [0]
    assert stream.replayed(0, life="b") == ["clear", 0]
    assert stream.replayed(0, 1, life="b") == ["b0", "b1"]
    assert stream.ended() == []
    assert stream.live(2, life="b") == ["b2"]
    assert stream.state is EXACT


def test_a_failed_replay_of_history() -> None:
    stream = Stream()
    stream.connected()
    assert stream.live(3) == []
    assert stream.failed() == [0]
    assert stream.failed() == ["a3"]
    assert stream.state is DEGRADED
    assert "joined at batch 3" in stream.sequencer.reason
    silent = Stream()
    silent.connected()
    silent.failed()
    assert silent.state is APPROXIMATE
    assert "no answer" in silent.sequencer.reason
    assert silent.live(0) == ["a0"]
    assert silent.state is EXACT


def test_a_failed_replay_of_a_gap_loses_it() -> None:
    stream = started(0)
    stream.live(2)
    assert stream.failed() == ["a2"]
    assert stream.state is DEGRADED
    assert stream.sequencer.counters.lost_batches == 1


def test_a_failed_check_after_reconnecting_forgets_and_the_next_batch_asks_again() -> None:
    stream = started(0, 1)
    stream.sequencer.disconnected()
    stream.connected()
    assert stream.failed() == ["clear"]
    assert stream.state is APPROXIMATE
    assert stream.live(2) == [0]
    assert stream.replayed(0, 1, 2) == ["a0", "a1", "a2"]
    assert stream.ended() == []
    assert stream.state is EXACT
    assert stream.sequencer.counters.restarts == 0


def test_a_check_that_fails_after_it_has_told_forgets_nothing() -> None:
    stream = started(0, 1)
    stream.sequencer.disconnected()
    stream.connected()
    assert stream.replayed(1, 2) == ["a2"]
    assert stream.failed() == []
    assert stream.state is EXACT
    assert stream.live(4) == [2]


def test_a_failed_reading_of_history_is_made_again() -> None:
    stream = Stream()
    stream.connected()
    assert stream.sequencer.recheck() == []
    stream.failed()
    assert stream.sequencer.recheck() == [Replay(0)]
    assert stream.sequencer.recheck() == []
    assert stream.replayed(0) == ["a0"]
    assert stream.ended() == []
    assert stream.state is EXACT


def test_without_replay_the_numbers_alone_tell() -> None:
    stream = started(0, 1, can_replay=False)
    assert stream.state is EXACT
    stream.sequencer.disconnected()
    assert stream.connected() == []
    assert stream.state is DEGRADED
    assert stream.live(2) == ["a2"]
    assert stream.state is EXACT
    assert stream.live(4) == ["a4"]
    assert stream.state is DEGRADED
    assert stream.live(0, life="b") == ["clear", "b0"]
    assert stream.state is EXACT
    assert stream.live(1, life="c") == ["c1"]  # nothing can tell


def test_without_replay_a_late_join_is_degraded() -> None:
    stream = started(7, can_replay=False)
    assert stream.state is DEGRADED
    assert stream.live(3, life="b") == ["clear", "b3"]
    assert stream.state is DEGRADED
    fresh = Stream(can_replay=False)
    fresh.connected()
    assert fresh.state is APPROXIMATE
    assert "no event" in fresh.sequencer.reason


def test_an_emptied_cache_heals_what_was_lost_before() -> None:
    stream = started(0, can_replay=False)
    lost = stream.sequencer.live(2, batch(2))[-1]
    assert isinstance(lost, Deliver)
    later = stream.sequencer.live(4, batch(4))[-1]
    assert isinstance(later, Deliver)
    stream.sequencer.cache_cleared(lost.serial)
    assert stream.state is DEGRADED  # batch 3 is lost too, and came after
    stream.sequencer.cache_cleared(later.serial)
    assert stream.state is EXACT


def test_an_unusable_batch_degrades_its_own_life() -> None:
    stream = started(0, can_replay=False)
    bad = stream.sequencer.live(1, batch(1))[-1]
    assert isinstance(bad, Deliver)
    stream.sequencer.flawed(bad.serial, "malformed")
    assert (stream.state, stream.sequencer.reason) == (DEGRADED, "malformed")
    stream.live(0, life="b")
    assert stream.state is EXACT
    stream.sequencer.flawed(bad.serial, "malformed")
    assert stream.state is EXACT


def test_the_buffer_is_bounded_and_what_it_drops_is_asked_for_again() -> None:
    stream = Stream(buffer_limit=2)
    stream.connected()
    stream.live(0, 1, 2, 3)
    assert stream.sequencer.counters.overflows == 2
    assert stream.ended() == ["a0", "a1"]
    assert stream.live(4) == [1]
    assert stream.replayed(1, 2, 3, 4) == ["a2", "a3", "a4"]
    assert stream.ended() == []
    assert stream.state is EXACT


def test_replies_of_no_replay_are_ignored() -> None:
    stream = started(0)
    assert stream.replayed(0, 1, 5) == []
    assert stream.ended() == stream.failed() == []
    assert stream.state is EXACT


def test_a_replay_is_the_last_action() -> None:
    sequencer = Sequencer(can_replay=True)
    assert sequencer.connected() == [Replay(0)]
    for number in (0, 4, 9):
        sequencer.live(number, batch(number))
    actions = sequencer.replay_ended()
    assert [isinstance(action, Replay) for action in actions] == [False, True]
