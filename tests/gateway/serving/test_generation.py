"""Tokens to events for n choices, and who is told what."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.serving.generation import Choice, Generation
from gateway.serving.stops import StopMatcher
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
        self.outputs = self.stops = self.flushes = 0

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        self.events += [(index, event) for event in events]

    def flush(self) -> None:
        self.flushes += 1

    def on_progress(self, new_tokens: int) -> None:
        self.progress.append(new_tokens)

    def on_output(self) -> None:
        self.outputs += 1

    def on_stopped(self) -> None:
        self.stops += 1


def generation(recorder: Recorder, choices: int = 1, stops: Sequence[str] = ()) -> Generation:
    return Generation(
        [Choice(Letters(), StopMatcher(stops, include=False) if stops else None) for _ in range(choices)],
        recorder,
        recorder,
    )


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
    assert recorder.events == [(0, ContentDelta("a")), (0, Finish("stop")), (1, Finish("stop"))]


def test_an_engines_finish_after_a_stop_string_changes_nothing() -> None:
    recorder = Recorder()
    run = generation(recorder, stops=["a"])
    run.on_tokens(0, [97])
    run.on_finish(0, "length", None)
    assert recorder.events == [(0, Finish("stop"))]


def test_text_that_was_held_back_for_a_stop_string_comes_before_the_finish() -> None:
    recorder = Recorder()
    run = generation(recorder, stops=["ab"])
    run.on_tokens(0, [97])
    run.on_finish(0, "length", None)
    assert recorder.events == [(0, ContentDelta("a")), (0, Finish("length"))]
