"""A conversation over the pair: prefill keeps the first turn's blocks, and its count is the client's."""

from __future__ import annotations

from tests.live.asker import assistant, user
from tests.live.pair.rig import Pair
from tests.live.rig import words
from tests.live.vocabulary import MESSAGE_END
from tests.live.worker import BLOCK

CONVERSATIONS = 4
TOKENS = 16
REPLY = "Noted."
SCRIPT = f"{REPLY}<|close|>response<|sep|>{MESSAGE_END}"


def story(pair: Pair, number: int) -> str:
    """A first turn that ends inside a block."""
    text = words(100 + number, seed=4000 + number)
    while len(pair.vocabulary.user_prompt(text)) % BLOCK in (0, 1):
        text += " more"
    return text


def test_second_turns_report_what_prefill_had_cached_and_are_right(pair: Pair) -> None:
    """Decode holds some of the blocks itself by then, and is handed the others."""
    for number in range(CONVERSATIONS):
        text = story(pair, number)
        first = pair.pair.ask([user(text)], streamed=False, thinking=False, script=SCRIPT)
        assert first.content == REPLY
        assert not first.cached_tokens
        turns = [user(text), assistant(REPLY), user("And then?")]
        second = pair.pair.ask(turns, streamed=True, thinking=False, max_tokens=TOKENS)
        assert second.cached_tokens == len(pair.vocabulary.user_prompt(text)) // BLOCK * BLOCK
        leg = pair.decoded(second.request_id)
        assert leg.token_ids == pair.aggregated_ids(leg.body["token_ids"], TOKENS), text
