"""The recorded chats of a vLLM with its kimi_k3 parsers, sent again to a simulated worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from simulator.tokens import Tokens
from tests.simulator.conformance import outputs
from tests.simulator.conformance.comparing import differences, events, told
from tests.simulator.conformance.outputs import Speller
from tests.simulator.conformance.rig import Rig

Json = dict[str, Any]

PARSERS, TIKTOKEN = "k3_parser_live", "k3_tiktoken_live"
"""A tokenizer.json with a template, and a tiktoken.model with Python code."""
SETTINGS = {
    PARSERS: {"model": "kimi-k3", "num_blocks": 512, "max_model_len": 2048},
    TIKTOKEN: {"model": "tiny", "num_blocks": 512, "max_model_len": 1024},
}

SWALLOWED = "vLLM sends an empty chunk for each tool call that it leaves out"
REASONS = {
    f"{PARSERS}/no_tools_in_request.st": SWALLOWED,
    f"{PARSERS}/tool_choice_none.st": SWALLOWED,
    f"{TIKTOKEN}/st": "vLLM looks for markers in text and holds back what could begin one; here they are ids",
    f"{TIKTOKEN}/ns": "the recorded server was started without --enable-prompt-tokens-details",
    f"{TIKTOKEN}/effort_medium": "the recorded tokenizer's format is not simulated, and with it its checks",
}
"""Exchanges that differ, and why they may."""


class Chat(NamedTuple):
    """A recorded exchange."""

    label: str
    path: str
    request: Json
    status: int
    raw: str


def chats(folder: Path, file: str) -> list[Chat]:
    """The exchanges of one file, in order."""
    read = json.loads((folder / f"{file}.json").read_bytes())
    found: list[Chat] = []
    for name, entry in read.items():
        request = entry.get("request") or dict(read["ns"]["request"])
        if name == "st":
            request["stream"] = True
        if name == "effort_medium":
            request["reasoning_effort"] = "medium"
        path = "/v1/chat/completions" + ("/render" if name == "render" else "")
        found.append(Chat(f"{file}/{name}", path, request, entry["status"], entry["raw"]))
    return found


async def replay(rig: Rig, chat: Chat, tokens: Tokens) -> str:
    """Send it again; the differences, "" when there are none."""
    request = dict(chat.request)
    streamed = chat.raw.startswith("data: ")
    if "vllm_xargs" not in request:
        body = events(chat.raw.encode()) if streamed else json.loads(chat.raw)
        pieces = outputs.of_stream(body) if streamed else outputs.of_body(body)
        request["vllm_xargs"] = {"script_ids": [Speller(tokens).ids(one) for one in pieces]}
    answer = await rig.http("POST", chat.path, None, json.dumps(request).encode())
    found = differences(answer.status, chat.status, "status")
    if not found and streamed:
        found = differences(events(answer.body), events(chat.raw.encode()))
    elif not found:
        found = differences(answer.json, json.loads(chat.raw))
    return told(found)
