"""Kimi-K3 as a `ModelFormat`: its encoder, its parser and its vocabulary under one name."""

from __future__ import annotations

from collections.abc import Sequence

from parsers.base import Chat, Detokenizer, EncodedChat, KvShape, OutputOptions
from parsers.kimi_k3.encoding import encode_chat
from parsers.kimi_k3.markers import STOP_IDS
from parsers.kimi_k3.parser import KimiK3Parser
from parsers.kimi_k3.tool_history import Revision
from parsers.kimi_k3.vocabulary import KimiK3Vocabulary, small_ranks

ATTENTION_LAYERS, STATE_LAYERS = 24, 69
LATENT_BYTES = 512 + 64
"""Of a token in one attention layer: the compressed keys and values, and the rotary part, in fp8."""
STATE_BYTES = 32 * 128 * 128 * 2
"""Of one recurrent layer; heads and sizes are those of the family's smaller models."""
KV_SHAPE = KvShape(
    ATTENTION_LAYERS * LATENT_BYTES, ATTENTION_LAYERS, STATE_LAYERS * STATE_BYTES, STATE_LAYERS
)


class KimiK3Format:
    """Implements `parsers.base.ModelFormat` for one revision of the prompt encoding."""

    family = "kimi_k3"
    kv_shape = KV_SHAPE
    stop_token_ids: Sequence[int] = STOP_IDS
    image_marker: str | None = "<|media_begin|>"

    def __init__(self, name: str = "kimi_k3", revision: Revision = "b") -> None:
        self.name = name
        self.revision: Revision = revision

    def __repr__(self) -> str:
        return f"<KimiK3Format {self.name}, revision {self.revision}>"

    def encode(self, chat: Chat) -> EncodedChat:
        return encode_chat(chat, self.revision)

    def parser(self, options: OutputOptions, detokenizer: Detokenizer) -> KimiK3Parser:
        return KimiK3Parser(options, detokenizer)

    def load_vocabulary(self, ranks: bytes | None = None) -> KimiK3Vocabulary:
        return KimiK3Vocabulary(small_ranks() if ranks is None else ranks)
