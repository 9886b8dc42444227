"""The generating endpoints."""

from __future__ import annotations

from gateway.api.batch import split_prompts
from gateway.api.chat_details import chat_stream
from gateway.api.chat_render import ChatWhole
from gateway.api.completion_render import CompletionStream, CompletionWhole
from gateway.api.fields import CHAT_FIELDS, COMPLETION_FIELDS
from gateway.api.generate import Surface
from gateway.serving.prepare import Preparer

CHAT = Surface(
    path="/v1/chat/completions",
    table=CHAT_FIELDS,
    required="messages",
    id_prefix="chatcmpl-",
    prepare=Preparer.chat,
    stream=chat_stream,
    whole=ChatWhole,
)

COMPLETIONS = Surface(
    path="/v1/completions",
    table=COMPLETION_FIELDS,
    required="prompt",
    id_prefix="cmpl-",
    prepare=Preparer.completion,
    stream=CompletionStream,
    whole=CompletionWhole,
    split=split_prompts,
)

SURFACES = (CHAT, COMPLETIONS)
