"""The generating endpoints."""

from __future__ import annotations

from functools import partial

from gateway.api.anthropic.render import MessageStream, MessageWhole
from gateway.api.anthropic.request import read_messages
from gateway.api.batch import split_prompts
from gateway.api.chat_details import chat_stream
from gateway.api.chat_render import ChatWhole
from gateway.api.completion_render import CompletionStream, CompletionWhole
from gateway.api.dialects import ANTHROPIC, OPENAI_EVENTS
from gateway.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, read_fields
from gateway.api.generate import Surface
from gateway.api.responses.render import ResponseStream, ResponseWhole
from gateway.api.responses.request import prepare_responses, read_responses
from gateway.serving.prepare import Preparer

CHAT = Surface(
    path="/v1/chat/completions",
    read=partial(read_fields, table=CHAT_FIELDS),
    required="messages",
    id_prefix="chatcmpl-",
    prepare=Preparer.chat,
    stream=chat_stream,
    whole=ChatWhole,
)

COMPLETIONS = Surface(
    path="/v1/completions",
    read=partial(read_fields, table=COMPLETION_FIELDS),
    required="prompt",
    id_prefix="cmpl-",
    prepare=Preparer.completion,
    stream=CompletionStream,
    whole=CompletionWhole,
    split=split_prompts,
)

RESPONSES = Surface(
    path="/v1/responses",
    read=read_responses,
    required="messages",
    id_prefix="resp_",
    prepare=prepare_responses,
    stream=ResponseStream,
    whole=ResponseWhole,
    dialect=OPENAI_EVENTS,
)

MESSAGES = Surface(
    path="/v1/messages",
    read=read_messages,
    required="messages",
    id_prefix="msg_",
    prepare=Preparer.chat,
    stream=MessageStream,
    whole=MessageWhole,
    dialect=ANTHROPIC,
)

SURFACES = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
