"""What holds for every chat, not only for those we thought of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parsers.base import Chat, EncodedChat, FormatError, Segment
from parsers.kimi_k3.encoding import encode_chat
from parsers.kimi_k3.markers import MARKERS
from parsers.kimi_k3.tool_history import Revision
from tests.parsers.kimi_k3.chats import CHATS, TEXT
from tests.parsers.kimi_k3.material import TOKENIZER

CONTROLS = {*MARKERS, "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"}
PLACEHOLDER = Segment("<|kimi_image_placeholder|>", True)
REVISIONS = st.sampled_from(["a", "b"])


def encoded_or_refused(chat: Chat, revision: Revision) -> EncodedChat | None:
    try:
        return encode_chat(chat, revision)
    except FormatError:
        return None


@given(CHATS, REVISIONS)
def test_any_chat_is_encoded_or_refused_and_only_markers_are_control(chat: Chat, revision: Revision) -> None:
    encoded = encoded_or_refused(chat, revision)
    if encoded is None:
        return
    segments = encoded.segments
    assert all(text for text, _ in segments)
    controls = [segment for segment in segments if segment.is_control and segment != PLACEHOLDER]
    assert {text for text, _ in controls} <= CONTROLS
    assert segments.count(PLACEHOLDER) == len(encoded.unsized_images)
    if not encoded.unsized_images:
        ids = TOKENIZER.encode_segments(encoded.pieces).ids.tolist()
        assert sum(token >= 163_584 for token in ids) == len(controls)
        text = "".join(text for text, _ in segments)
        assert TOKENIZER.decode(ids) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@given(TEXT, TEXT, TEXT, REVISIONS)
def test_no_text_of_a_client_becomes_structure(
    told: str, thought: str, said: str, revision: Revision
) -> None:
    def controls(*texts: str) -> list[Segment]:
        told, thought, said = texts
        answer = {"role": "assistant", "content": said, "reasoning_content": thought}
        chat = Chat(messages=[{"role": "user", "content": told}, answer, {"role": "user", "content": told}])
        return [segment for segment in encode_chat(chat, revision).segments if segment.is_control]

    assert controls(told, thought, said) == controls("x", "x", "x")
