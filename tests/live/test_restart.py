"""A worker killed with SIGKILL in the middle of its streams, and the same worker back again.

The steps depend on each other and are one story, told once by `story`; each test checks one part of it.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

import msgspec
import openai
import pytest

from loadtests.processes import wait_until
from tests.live.asker import user
from tests.live.rig import Rig, words
from tests.live.vocabulary import MESSAGE_END, answer
from tests.live.worker import BLOCK, LiveWorker

STREAMS = 4
DELAY_MS = 50
SCRIPT = answer(words(60, seed=3), "Done.")
SHORT = answer("Hm.", "Yes.")
ANSWER = f"Yes.<|close|>response<|sep|>{MESSAGE_END}"
"""The same without thinking."""
STREAM_SECONDS = 90.0
AFTER_KILL = 5
BACK_IN_USE = 12
LONG_WORDS, SHARED_WORDS = 300, 150
TAIL_MARGIN = 16
"""More tokens than a user message's prompt has after its text."""


class Streamed(msgspec.Struct):
    """How one stream ended."""

    reasoning: str = ""
    content: str = ""
    finish: str | None = None
    error: openai.APIError | None = None
    seconds_after_kill: float = 0.0


class Story(msgspec.Struct):
    """What happened, for the tests to judge."""

    cut: int = 0
    """Streams that the killed worker was running."""
    streams: list[Streamed] = []
    after_kill: list[str | None] = []
    """Answers to requests made while the worker was gone."""
    feeds_before: list[str] = []
    feeds_after: list[str] = []
    holder: str = ""
    """Who answered the prompt that the killed worker alone had held in full, and the other one in part."""
    survivor: str = ""
    cached: int | None = None
    cached_expected: int = 0
    used_again: bool = False


def shared_text(rig: Rig, seed: int) -> str:
    """A prefix whose own prompt leaves its last full block inside the text, where longer texts share it."""
    for size in count(SHARED_WORDS):
        text = words(size, seed)
        if len(rig.vocabulary.user_prompt(text)) % BLOCK >= TAIL_MARGIN:
            return text
    raise AssertionError


def held_by(rig: Rig, victim: LiveWorker) -> int:
    """The seed of a long prompt that was served, and so is held, by the victim."""
    for seed in range(700, 720):
        before = rig.finished()
        rig.whole([user(words(LONG_WORDS, seed))], script=ANSWER, thinking=False)
        if rig.served_since(before) is victim:
            return seed
    raise AssertionError("no new prompt went to the victim")


def read_stream(rig: Rig, number: int, killed: list[float]) -> Streamed:
    """Read a slow stream to its end, good or bad."""
    result = Streamed()
    try:
        for chunk in rig.stream([user(f"Question {number}")], script=SCRIPT, delay_ms=DELAY_MS):
            for choice in chunk.choices:
                result.finish = choice.finish_reason or result.finish
                result.content += choice.delta.content or ""
                result.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
    except openai.APIError as error:
        result.error = error
    if killed:
        result.seconds_after_kill = time.monotonic() - killed[0]
    return result


def kill_under_load(rig: Rig, victim: LiveWorker, story: Story) -> None:
    """Streams on both workers, then SIGKILL for one of them."""
    killed: list[float] = []
    with ThreadPoolExecutor(STREAMS) as pool:
        futures: list[Future[Streamed]] = [
            pool.submit(read_stream, rig, number, killed) for number in range(STREAMS)
        ]
        wait_until(
            "the streams run on both workers",
            lambda: (
                sum(w.running for w in rig.workers) == STREAMS and all(w.running > 0 for w in rig.workers)
            ),
            20.0,
        )
        story.cut = int(victim.running)
        victim.kill()
        killed.append(time.monotonic())
        for _ in range(AFTER_KILL):
            story.after_kill.append(
                rig.whole([user("Still there?")], script=SHORT).choices[0].message.content
            )
        story.streams = [future.result(STREAM_SECONDS) for future in futures]


def feeds(rig: Rig) -> list[str]:
    return [feed["state"] for worker in rig.gateway.workers() for feed in worker["feeds"]]


@pytest.fixture(scope="module")
def story(rig: Rig) -> Story:
    """Kill and restart the first worker; afterwards the rig is whole again."""
    story = Story()
    victim, survivor = rig.workers
    seed = held_by(rig, victim)
    rig.settle()
    story.feeds_before = feeds(rig)
    kill_under_load(rig, victim, story)
    try:
        shared = shared_text(rig, seed)
        # Only the survivor can take this; it then holds a part of what the victim held in full.
        rig.whole([user(shared)], script=ANSWER, thinking=False)
        rig.settle()
    finally:
        victim.start()
        victim.wait_ready()
        rig.wait_connected()
    story.feeds_after = feeds(rig)
    ask_for_the_old_prompt(rig, seed, shared, story)
    story.survivor = survivor.name
    story.used_again = comes_into_use(rig, victim)
    return story


def ask_for_the_old_prompt(rig: Rig, seed: int, shared: str, story: Story) -> None:
    before = rig.finished()
    again = rig.whole([user(words(LONG_WORDS, seed))], script=ANSWER, thinking=False)
    story.holder = rig.served_since(before).name
    assert again.usage is not None
    details = again.usage.prompt_tokens_details
    story.cached = details.cached_tokens if details is not None else 0
    story.cached_expected = len(rig.vocabulary.user_prompt(shared)) // BLOCK * BLOCK


def comes_into_use(rig: Rig, victim: LiveWorker) -> bool:
    """Prompts that share no block with any other, so that no worker has a reason to get them all."""
    before = victim.finished
    for number in range(BACK_IN_USE):
        rig.whole([user(words(50, seed=800 + number))], script=ANSWER, thinking=False)
    return victim.finished > before


def test_its_streams_end_with_a_clear_error(story: Story) -> None:
    failed = [stream for stream in story.streams if stream.error is not None]
    assert len(failed) == story.cut > 0
    for stream in failed:
        assert "worker failed" in str(stream.error), stream
        assert stream.finish is None, "a broken stream must not look finished"
        assert stream.reasoning, "the stream had begun"
        assert stream.seconds_after_kill < 5.0


def test_the_other_workers_streams_are_whole(story: Story) -> None:
    whole = [stream for stream in story.streams if stream.error is None]
    assert len(whole) == STREAMS - story.cut > 0
    for stream in whole:
        assert (stream.content, stream.finish) == ("Done.", "stop")


def test_the_gateway_goes_on_at_once(story: Story) -> None:
    """From the moment of the kill, before any health check can have noticed."""
    assert story.after_kill == ["Yes."] * AFTER_KILL


def test_the_restarted_workers_events_are_followed_again(story: Story) -> None:
    assert story.feeds_before == story.feeds_after == ["exact", "exact"]


def test_the_restarted_workers_old_blocks_are_forgotten(story: Story) -> None:
    """The prompt that it held in full goes to the worker that holds a part of it now."""
    assert story.holder == story.survivor
    assert story.cached == story.cached_expected > 0


def test_the_restarted_worker_is_used_again(story: Story) -> None:
    assert story.used_again
