"""SIGKILL for the prefill worker between the two legs, then for the decode worker in mid-stream.

The steps depend on each other and are one story, told once by `story`; each test checks one part of it.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import openai
import pytest

from loadtests.processes import wait_until
from tests.live.asker import Answer, joined, user
from tests.live.pair.rig import Front, Pair
from tests.live.rig import words
from tests.live.vocabulary import CONTROL, answer
from tests.live.worker import LiveWorker

TOKENS = 16
LONG_TOKENS = 400
FIRST_CONTROL = min(CONTROL.values()) - 2
"""More than a worker writes in the time until it is killed."""
DELAY_MS = 50
SLOW = answer(words(70, seed=6), "Done.")
CLEAR_SECONDS = 15.0
"""An error comes within this. vLLM gives a prefill worker that does not answer 5 s."""
WAIT_SECONDS = 120.0


class Ended(msgspec.Struct):
    """How a request ended."""

    text: str = ""
    finish: str | None = None
    error: openai.APIError | None = None
    seconds: float = 0.0
    right: str = ""
    """What the aggregated worker says, asked directly."""


class Compared(msgspec.Struct):
    """Ids that came over the pair, and the aggregated worker's."""

    decoded: list[int]
    aggregated: list[int]


class Story(msgspec.Struct):
    """What happened, for the tests to judge."""

    beside: Answer = msgspec.field(default_factory=Answer)
    """A stream that the decode worker wrote all the while."""
    between: dict[str, Ended] = {}
    """Requests that were prefilled when the prefill worker died, and not yet sent to decode."""
    at_once: dict[str, Ended] = {}
    """Requests from the moment of that death, before a health check can have noticed."""
    without_prefill: list[Ended] = []
    mixed_without_prefill: Ended = msgspec.field(default_factory=Ended)
    after_prefill: list[Compared] = []
    cut: list[list[str]] = []
    """The data of the frames of the streams that the decode worker was writing when it died."""
    without_decode: list[Ended] = []
    continued: Ended = msgspec.field(default_factory=Ended)
    """A greedy stream over the pair that the aggregated worker went on with when decode died."""
    mixed_without_decode: Ended = msgspec.field(default_factory=Ended)
    after_decode: list[Compared] = []
    cut_seconds: float = 0.0


def prompt(number: int) -> str:
    return words(90, seed=6000 + number)


def asked(pair: Pair, front: Front, number: int, streamed: bool = False, tokens: int = TOKENS) -> Ended:
    """A greedy request, whichever way it ends."""
    got = Answer()
    ended = Ended()
    began = time.monotonic()
    try:
        messages = [user(prompt(number))]
        if streamed:
            joined(front.stream(messages, thinking=False, max_tokens=tokens), into=got)
        else:
            got = front.ask(messages, streamed=False, thinking=False, max_tokens=tokens)
    except openai.APIError as error:
        ended.error = error
    ended.seconds = time.monotonic() - began
    ended.text, ended.finish = got.content, got.finish
    ended.right = right(pair, number, tokens)
    return ended


def right(pair: Pair, number: int, tokens: int) -> str:
    ids = pair.aggregated_ids(pair.vocabulary.user_prompt(prompt(number)), tokens)
    return pair.vocabulary.text(ids)


def spelled(pair: Pair, first: int, tokens: int) -> int:
    """The number of a prompt whose answer is ordinary text, which the random weights do not always give."""
    for number in range(first, first + 20):
        if max(pair.aggregated_ids(pair.vocabulary.user_prompt(prompt(number)), tokens)) < FIRST_CONTROL:
            return number
    raise AssertionError("every answer has control tokens")


def compared(pair: Pair, first: int) -> list[Compared]:
    """Three prompts over the pair, by their ids."""
    results = []
    for number in range(first, first + 3):
        got = pair.pair.ask([user(prompt(number))], streamed=True, thinking=False, max_tokens=TOKENS)
        leg = pair.decoded(got.request_id)
        results.append(Compared(leg.token_ids, pair.aggregated_ids(leg.body["token_ids"], TOKENS)))
    return results


@contextlib.contextmanager
def busy_aggregated(pair: Pair) -> Iterator[None]:
    """While the aggregated worker writes a slow stream, the pair is the only choice for another request."""
    salt = uuid.uuid4().hex  # nobody has anything of it, so that the idle aggregated worker is the best
    stream = pair.mixed.stream([user("Slowly.")], script=SLOW, delay_ms=DELAY_MS, cache_salt=salt)
    try:
        next(stream)
        wait_until("it runs on the aggregated worker", lambda: pair.aggregated.running == 1, 5.0)
        yield
    finally:
        stream.close()


def kill_prefill_between_the_legs(pair: Pair, story: Story) -> None:
    asking: dict[str, Callable[[], Ended]] = {
        "whole": lambda: asked(pair, pair.pair, 1),
        "streamed": lambda: asked(pair, pair.pair, 2, streamed=True),
        "mixed": lambda: asked(pair, pair.mixed, 3),
    }
    with ThreadPoolExecutor(4) as pool:
        beside: Future[Answer] = pool.submit(
            lambda: pair.pair.ask([user("Go on.")], streamed=True, script=SLOW, delay_ms=DELAY_MS)
        )
        wait_until("a stream runs on decode", lambda: pair.decode.running == 1, 20.0)
        with pair.tap.holding() as held:
            with busy_aggregated(pair):
                futures = {name: pool.submit(ask) for name, ask in asking.items()}
                for name in futures:
                    assert held.acquire(timeout=20.0), f"{name}: a decode leg did not come"
                pair.prefill.kill()
            fronts = {"mixed": pair.mixed, "pair": pair.pair}
            story.at_once = {name: asked(pair, front, 4) for name, front in fronts.items()}
        story.between = {name: future.result(WAIT_SECONDS) for name, future in futures.items()}
        story.without_prefill = [asked(pair, pair.pair, 10 + number) for number in range(3)]
        story.mixed_without_prefill = asked(pair, pair.mixed, 13)
        story.beside = beside.result(WAIT_SECONDS)


def frames(front: Front, text: str, into: list[str]) -> None:
    """A stream's frames as they come over the wire."""
    body = front.body([user(text)], script=SLOW, delay_ms=DELAY_MS, stream=True)
    body |= body.pop("extra_body")
    message = urllib.request.Request(
        f"{front.gateway.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(message, timeout=WAIT_SECONDS) as response:
        into.extend(line[6:].decode().strip() for line in response if line.startswith(b"data: "))


def kill_decode_in_midstream(pair: Pair, story: Story) -> None:
    story.cut = [[], []]
    number = spelled(pair, 60, LONG_TOKENS)
    with ThreadPoolExecutor(3) as pool:
        with busy_aggregated(pair):
            long = pool.submit(asked, pair, pair.mixed, number, streamed=True, tokens=LONG_TOKENS)
            futures = [
                pool.submit(frames, pair.pair, f"Tell me {each}.", into)
                for each, into in enumerate(story.cut)
            ]
            wait_until("the streams run on decode", lambda: pair.decode.running == 3, 20.0)
            time.sleep(10 * DELAY_MS / 1000)
            pair.decode.kill()
            killed = time.monotonic()
        for future in futures:
            future.result(WAIT_SECONDS)
        story.cut_seconds = time.monotonic() - killed
        story.continued = long.result(WAIT_SECONDS)
    story.without_decode = [asked(pair, pair.pair, 20 + number) for number in range(2)]
    story.mixed_without_decode = asked(pair, pair.mixed, 22)


def restart(pair: Pair, worker: LiveWorker) -> None:
    """Start a worker again, also one that a story that failed has not killed."""
    worker.kill()
    worker.start()
    pair.wait_ready()


@pytest.fixture(scope="module")
def story(pair: Pair) -> Story:
    """Kill and restart both, one after the other; afterwards the rig is whole again."""
    story = Story()
    compared(pair, 0)  # the workers know each other, as they do when something fails
    try:
        kill_prefill_between_the_legs(pair, story)
    finally:
        restart(pair, pair.prefill)
    story.after_prefill = compared(pair, 30)
    try:
        kill_decode_in_midstream(pair, story)
    finally:
        restart(pair, pair.decode)
    story.after_decode = compared(pair, 40)
    return story


def assert_clear(ended: Ended) -> None:
    """An error that says that a worker failed or is missing, soon, and no text beside it."""
    assert isinstance(ended.error, openai.APIStatusError), ended
    assert ended.error.status_code in (502, 503), ended
    assert "orker" in ended.error.message, ended
    assert (ended.text, ended.finish) == ("", None)
    assert ended.seconds < CLEAR_SECONDS


def test_a_request_whose_prefill_died_before_decode_gets_a_clear_error(pair: Pair, story: Story) -> None:
    """vLLM's decode worker, with its default policy, answers 500 at once: it has lost the connection."""
    for name in ("whole", "streamed"):
        assert_clear(story.between[name])
    assert " failed on decode after prefill on prefill: " in pair.pair.gateway.log.read_text()


def test_with_an_aggregated_worker_such_a_request_is_answered_right(story: Story) -> None:
    """It goes there after the decode worker failed it."""
    ended = story.between["mixed"]
    assert ended.error is None
    assert (ended.text, ended.finish) == (ended.right, "length")


def test_a_stream_on_the_decode_worker_outlives_the_prefill_worker(story: Story) -> None:
    assert (story.beside.content, story.beside.finish) == ("Done.", "stop")


def test_without_a_prefill_worker_requests_get_a_clear_error(story: Story) -> None:
    for ended in (story.at_once["pair"], *story.without_prefill):
        assert_clear(ended)


def test_without_a_prefill_worker_an_aggregated_one_answers(story: Story) -> None:
    for ended in (story.at_once["mixed"], story.mixed_without_prefill):
        assert ended.text == ended.right, ended


def test_a_prefill_worker_that_is_back_is_used_again(story: Story) -> None:
    for answers in story.after_prefill:
        assert answers.decoded == answers.aggregated


def test_streams_of_a_decode_worker_that_dies_end_in_an_error_frame(pair: Pair, story: Story) -> None:
    assert story.cut_seconds < CLEAR_SECONDS
    for data in story.cut:
        *chunks, failure, end = data
        assert end == "[DONE]"
        error = json.loads(failure)["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_error")
        assert "incomplete" in error["message"]
        request_id = json.loads(chunks[0])["id"].removeprefix("chatcmpl-")
        assert f"stream {request_id} broke on prefill and decode" in pair.pair.gateway.log.read_text()
        choices = [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]
        assert all(choice["finish_reason"] is None for choice in choices), "it must not look finished"
        reasoning = "".join(choice["delta"].get("reasoning_content") or "" for choice in choices)
        assert reasoning
        assert SLOW.startswith(reasoning)


def test_an_aggregated_worker_goes_on_with_a_stream_of_a_dead_decode_worker(story: Story) -> None:
    """Greedy, so that what it goes on with is what would have come; the state of the text is carried over."""
    ended = story.continued
    assert ended.error is None
    assert (ended.text, ended.finish) == (ended.right, "length")


def test_without_a_decode_worker_requests_get_a_clear_error(story: Story) -> None:
    for ended in story.without_decode:
        assert_clear(ended)


def test_without_a_decode_worker_an_aggregated_one_answers(story: Story) -> None:
    assert story.mixed_without_decode.text == story.mixed_without_decode.right


def test_a_decode_worker_that_is_back_is_used_again(story: Story) -> None:
    for answers in story.after_decode:
        assert answers.decoded == answers.aggregated
