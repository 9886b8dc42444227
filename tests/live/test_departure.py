"""A client that leaves stops its generation on the worker."""

from __future__ import annotations

import time

import openai
import pytest

from loadtests.processes import wait_until
from tests.live.asker import user
from tests.live.rig import Rig, words
from tests.live.vocabulary import answer

DELAY_MS = 50
LONG = answer(words(200, seed=1), "Done.")
STOP_SECONDS = 5.0


def running(rig: Rig) -> float:
    return sum(worker.running for worker in rig.workers)


def generated(rig: Rig) -> float:
    return sum(worker.generated for worker in rig.workers)


def assert_stops(rig: Rig, before: float) -> None:
    """Nothing runs on the workers any more, long before the script would have ended."""
    wait_until("the workers run nothing", lambda: running(rig) == 0, STOP_SECONDS, every=0.05)
    made = generated(rig) - before
    assert 0 < made < len(rig.vocabulary.script(LONG)) / 4, made
    time.sleep(4 * DELAY_MS / 1000)
    assert generated(rig) - before == made


def test_a_stream_left_by_the_client_stops_on_the_worker(rig: Rig) -> None:
    before = generated(rig)
    chunks = rig.stream([user("Tell me.")], script=LONG, delay_ms=DELAY_MS, max_tokens=2000)
    for _ in range(5):
        next(chunks)
    assert running(rig) == 1
    chunks.close()
    assert_stops(rig, before)


def test_a_whole_answer_that_its_client_gives_up_stops_on_the_worker(rig: Rig) -> None:
    before = generated(rig)
    client = rig.client.with_options(timeout=1.0)
    body = rig.body([user("Tell me.")], script=LONG, delay_ms=DELAY_MS, max_tokens=2000)
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**body)
    assert_stops(rig, before)
