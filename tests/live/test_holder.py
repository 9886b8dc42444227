"""A conversation's second turn goes where its first one left its blocks."""

from __future__ import annotations

from tests.live.asker import assistant, user
from tests.live.rig import Rig, words
from tests.live.vocabulary import MESSAGE_END
from tests.live.worker import BLOCK

CONVERSATIONS = 6
REPLY = "Noted."
SCRIPT = f"{REPLY}<|close|>response<|sep|>{MESSAGE_END}"


def story(rig: Rig, number: int) -> str:
    """A first turn of more than ten blocks that ends inside a block."""
    text = words(100 + number, seed=500 + number)
    while len(rig.vocabulary.user_prompt(text)) % BLOCK in (0, 1):
        text += " more"
    return text


def test_second_turns_go_to_the_holder_and_report_its_cached_tokens(rig: Rig) -> None:
    stories = [story(rig, number) for number in range(CONVERSATIONS)]
    holders = []
    for text in stories:
        before = rig.finished()
        first = rig.whole([user(text)], thinking=False, script=SCRIPT)
        assert first.choices[0].message.content == REPLY
        holders.append(rig.served_since(before))
    assert len({holder.name for holder in holders}) == 2, "one worker took every new conversation"
    rig.settle()
    for text, holder in zip(stories, holders, strict=True):
        before = rig.finished()
        turns = [user(text), assistant(REPLY), user("And then?")]
        second = rig.whole(turns, thinking=False, script=SCRIPT)
        assert rig.served_since(before) is holder, text
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        held = len(rig.vocabulary.user_prompt(text)) // BLOCK * BLOCK
        assert second.usage.prompt_tokens_details.cached_tokens == held


def test_a_first_turn_reports_nothing_cached(rig: Rig) -> None:
    first = rig.whole([user(words(80, seed=900))], thinking=False, script=SCRIPT)
    assert first.usage is not None
    details = first.usage.prompt_tokens_details
    assert details is None or not details.cached_tokens
