"""A pair and an aggregated worker in one configuration, for one model: both serve, and say the same."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

from tests.live.asker import user
from tests.live.pair.rig import Pair
from tests.live.rig import words
from tests.live.vocabulary import CONTROL

REQUESTS = 12
AT_ONCE = 6
TOKENS = 16
FIRST_CONTROL = min(CONTROL.values()) - 2


def test_both_pools_serve_a_burst(pair: Pair) -> None:
    texts = [words(90, seed=5000 + number) for number in range(REQUESTS)]
    expected = [pair.aggregated_ids(pair.vocabulary.user_prompt(text), TOKENS) for text in texts]

    def ask(text: str) -> str:
        salt = uuid.uuid4().hex
        answer = pair.mixed.ask(
            [user(text)], streamed=True, thinking=False, max_tokens=TOKENS, cache_salt=salt
        )
        return answer.content

    before = [worker.finished for worker in pair.workers]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        contents = list(pool.map(ask, texts))
    prefilled, decoded, whole = (
        worker.finished - was for worker, was in zip(pair.workers, before, strict=True)
    )
    assert prefilled == decoded > 0
    assert whole > 0
    assert decoded + whole == REQUESTS
    for text, content, ids in zip(texts, contents, expected, strict=True):
        if max(ids) < FIRST_CONTROL:
            assert content == pair.vocabulary.text(ids), text
