"""Tokens to events for n choices, and who is told what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.engines.base import TokenLogprob
from gateway.serving.generation import Choice, Generation
from gateway.serving.stops import StopMatcher
from gateway.serving.token_watch import TokenDetail, TokenWatch
from parsers.base import ContentDelta, Finish, OutputEvent


class Letters:
    """A parser whose ids are letters."""

    reasoning_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> list[OutputEvent]:
        return [ContentDelta("".join(map(chr, token_ids)))]

    def feed_text(self, text: str) -> list[OutputEvent]:
        return [ContentDelta(text)]

    def finish(self, engine_reason: str) -> list[OutputEvent]:
        return [Finish(engine_reason)]


class Recorder:
    """Emitter and observer in one."""

    def __init__(self) -> None:
        self.events: list[tuple[int, OutputEvent]] = []
        self.progress: list[int] = []
        self.tokens: list[TokenDetail] = []
        self.outputs = self.stops = self.flushes = 0

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        self.events += [(index, event) for event in events]

    def on_token(self, index: int, token: TokenDetail) -> None:
        self.tokens.append(token)

    def flush(self) -> None:
        self.flushes += 1

    def on_progress(self, new_tokens: int) -> None:
        self.progress.append(new_tokens)

    def on_output(self) -> None:
        self.outputs += 1

    def on_stopped(self) -> None:
        self.stops += 1


def generation(recorder: Recorder, choices: int = 1, stops: Sequence[str] = (), **watch: Any) -> Generation:
    def look() -> TokenWatch | None:
        matcher = StopMatcher(stops, include=watch.get("show_stop", False)) if stops else None
        return TokenWatch(matcher, **watch) if stops or watch else None

    return Generation([Choice(Letters(), look()) for _ in range(choices)], recorder, recorder)


def test_each_choice_is_parsed_and_counted_alone() -> None:
    recorder = Recorder()
    run = generation(recorder, choices=2)
    run.on_tokens(0, [97])
    run.on_tokens(1, [98, 99])
    run.on_finish(1, "length", None)
    assert recorder.events == [(0, ContentDelta("a")), (1, ContentDelta("bc")), (1, Finish("length"))]
    assert [choice.tokens for choice in run.choices] == [1, 2]
    assert run.completion_tokens == 3


def test_progress_is_told_once_a_read_and_output_once_a_request() -> None:
    recorder = Recorder()
    run = generation(recorder)
    run.on_tokens(0, [97])
    run.on_tokens(0, [98])
    run.flush()
    run.flush()
    run.on_tokens(0, [99])
    run.flush()
    assert recorder.progress == [2, 1]
    assert recorder.outputs == 1
    assert recorder.flushes == 3


def test_a_stop_string_finishes_its_choice_and_ends_the_generation_when_all_are_finished() -> None:
    recorder = Recorder()
    run = generation(recorder, choices=2, stops=["b"])
    run.on_tokens(0, [97, 98, 99])
    assert recorder.stops == 0
    run.on_tokens(0, [100])
    run.on_tokens(1, [98])
    assert recorder.stops == 1
    assert recorder.events == [(0, ContentDelta("a")), (0, Finish("stop", "b")), (1, Finish("stop", "b"))]


def test_an_engines_finish_after_a_stop_string_changes_nothing() -> None:
    recorder = Recorder()
    run = generation(recorder, stops=["a"])
    run.on_tokens(0, [97])
    run.on_finish(0, "length", None)
    assert recorder.events == [(0, Finish("stop", "a"))]


def test_text_that_was_held_back_for_a_stop_string_comes_before_the_finish() -> None:
    recorder = Recorder()
    run = generation(recorder, stops=["ab"])
    run.on_tokens(0, [97])
    run.on_finish(0, "length", None)
    assert recorder.events == [(0, ContentDelta("a")), (0, Finish("length"))]


def test_tokens_after_the_one_that_completes_a_stop_string_are_not_counted() -> None:
    recorder = Recorder()
    run = generation(recorder, stops=["cd"])
    run.on_tokens(0, [97, 98, 99, 100, 101, 102])
    assert run.completion_tokens == 4
    assert recorder.events == [(0, ContentDelta("a")), (0, ContentDelta("b")), (0, Finish("stop", "cd"))]


@pytest.mark.parametrize(("show", "text"), [(False, "ab"), (True, "abc")])
def test_a_stop_token_is_counted_and_shown_only_on_request(show: bool, text: str) -> None:
    recorder = Recorder()
    run = generation(recorder, stop_ids=[99], show_stop=show)
    run.on_tokens(0, [97, 98, 99])
    run.on_finish(0, "stop", 99)
    *shown, end = [event for _, event in recorder.events]
    assert "".join(event.text for event in shown if isinstance(event, ContentDelta)) == text
    assert end == Finish("stop", 99)
    assert run.completion_tokens == 3


def test_an_end_of_the_models_own_is_no_stop_of_the_request() -> None:
    recorder = Recorder()
    run = generation(recorder, stop_ids=[99])
    run.on_finish(0, "stop", 5)
    assert recorder.events == [(0, Finish("stop"))]


@pytest.mark.parametrize("cut", [1, 2, 3, 6])
def test_stop_strings_within_the_first_tokens_do_not_count_however_they_come(cut: int) -> None:
    recorder = Recorder()
    run = generation(recorder, stops=["ab"], min_tokens=3)
    ids = [97, 98, 97, 98, 99, 99]
    for start in range(0, len(ids), cut):
        run.on_tokens(0, ids[start : start + cut])
    text = "".join(event.text for _, event in recorder.events if isinstance(event, ContentDelta))
    assert (text, run.completion_tokens) == ("ab", 4)


def test_each_token_is_told_before_its_events_with_its_log_probability() -> None:
    recorder = Recorder()
    run = generation(recorder, spell=lambda token_id: bytes([token_id]))
    run.on_logprobs(0, [TokenLogprob(97, -1.0, [(97, -1.0), (98, -2.0)]), TokenLogprob(98, -3.0)])
    run.on_tokens(0, [97, 98])
    run.on_tokens(0, [99])
    assert recorder.tokens == [
        TokenDetail(97, b"a", -1.0, [(b"a", -1.0), (b"b", -2.0)]),
        TokenDetail(98, b"b", -3.0, []),
        TokenDetail(99, b"c"),
    ]
