"""The recorded HTTP exchanges, each sent again to a simulated worker in the order of the recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from simulator.tokens import Tokens
from tests.simulator.conformance import outputs
from tests.simulator.conformance.comparing import (
    by_choice,
    differences,
    events,
    metric_shapes,
    metric_value,
    told,
)
from tests.simulator.conformance.outputs import Speller
from tests.simulator.conformance.rig import Answer, Rig

SETTINGS = {"model": "tiny", "num_blocks": 70, "max_model_len": 2048, "force_include_usage": True}
"""As the recorded server was started, as far as it can be seen."""
NOT_COMPARED = {"date", "connection", "content-length", "x-request-id"}
LEFT_EARLY = ("abort_stream_partial", "abort_nonstream")
SETTLED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting{",
    'vllm:request_success_total{engine="0",finished_reason="abort"',
)
"""Samples whose values are the same whatever was asked before."""

HERMES = (
    "vLLM's hermes tool parser takes the output apart; the worker has the parsers of its own formats only"
)
ABSENT = "not simulated: the gateway does not ask a worker for it"
REASONS = {
    "get_version": "says +sim on purpose: nobody should take it for an engine",
    "get_openapi": ABSENT,
    "chat_tools_required_stream": HERMES,
    "chat_tools_named_stream": HERMES,
    "responses_basic": ABSENT,
    "responses_stream": ABSENT,
    "anthropic_messages": ABSENT,
    "anthropic_stream": ABSENT,
}
"""Exchanges that differ, and why they may."""


class Exchange(NamedTuple):
    """A recorded request and its answer."""

    label: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    answer: Answer
    """Status 0 where the client did not wait for one."""

    @property
    def streamed(self) -> bool:
        return self.answer.headers.get("content-type", "").startswith("text/event-stream")


def read_exchange(folder: Path, label: str) -> Exchange:
    """Raw bytes as they went over the wire, made into parts."""
    head, _, body = (folder / f"{label}.req").read_bytes().partition(b"\r\n\r\n")
    method, path, _ = head.decode().splitlines()[0].split()
    raw, _, content = (folder / f"{label}.resp").read_bytes().partition(b"\r\n\r\n")
    headers = _headers(raw.decode())
    if headers.get("transfer-encoding") == "chunked":
        content = _unchunk(content)
    status = int(raw.split()[1]) if raw else 0
    return Exchange(label, method, path, _headers(head.decode()), body, Answer(status, headers, content))


def labels(folder: Path) -> list[str]:
    """All of them, in order."""
    named = [entry["label"] for entry in json.loads((folder / "index.json").read_bytes())]
    return [label for label in named if (folder / f"{label}.req").exists()]


async def replay(rig: Rig, exchange: Exchange, tokens: Tokens, speller: Speller) -> str:
    """Send it again; the differences, "" when there are none."""
    if exchange.label in LEFT_EARLY:
        return await _leave_early(rig, exchange, tokens, speller)
    body = scripted(exchange, tokens, speller)
    answer = await rig.http(exchange.method, exchange.path, _sent_headers(exchange), body)
    return told(compare(answer, exchange.answer))


def scripted(exchange: Exchange, tokens: Tokens, speller: Speller) -> bytes:
    """The request's body with what the recorded model answered as its script."""
    said = _said(exchange, tokens)
    if not said:
        return exchange.body
    fields = json.loads(exchange.body)
    script = {"script_ids": [speller.ids(pieces) for pieces in said]}
    if exchange.path.endswith("/generate"):
        fields["sampling_params"]["extra_args"] = script
    else:
        fields["vllm_xargs"] = script
    return json.dumps(fields).encode()


def compare(ours: Answer, theirs: Answer) -> list[str]:
    """Status, headers and body."""
    found = differences(ours.status, theirs.status, "status")
    found += differences(_kept_headers(ours), _kept_headers(theirs), "headers")
    if found:
        return found
    kind = theirs.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return differences(by_choice(events(ours.body)), by_choice(events(theirs.body)))
    if kind.startswith("text/plain"):
        return _compare_pages(ours.body.decode(), theirs.body.decode())
    return differences(_value(ours.body), _value(theirs.body))


def _compare_pages(ours: str, theirs: str) -> list[str]:
    own = {name: shape for name, shape in metric_shapes(ours).items() if "sim_" not in name}
    found = differences(own, metric_shapes(theirs))
    for sample in SETTLED:
        found += differences(metric_value(ours, sample), metric_value(theirs, sample), sample)
    return found


async def _leave_early(rig: Rig, exchange: Exchange, tokens: Tokens, speller: Speller) -> str:
    """The client goes away: in the middle of a stream, or before there is an answer."""
    body = _slow(scripted(exchange, tokens, speller) if exchange.streamed else exchange.body)
    wanted = exchange.answer.body.count(b"\n\n")
    received = await rig.http_part(exchange.path, _sent_headers(exchange), body, wanted)
    await rig.until(lambda: rig.engine.counters.running == 0)
    theirs = exchange.answer.body.rpartition(b"\n\n")[0] + b"\n\n" if wanted else b""
    return told(differences(events(received), events(theirs)))


def _slow(body: bytes) -> bytes:
    """With a little time between the tokens, and more of them than anyone waits for."""
    fields = json.loads(body)
    fields["vllm_xargs"] = fields.get("vllm_xargs", {"script_ids": []}) | {"delay_ms": 1}
    said = fields["vllm_xargs"]["script_ids"]
    fields["vllm_xargs"]["script_ids"] = [*(said[0] if said else []), *([5] * 1000)]
    return json.dumps(fields | {"ignore_eos": True}).encode()


def _said(exchange: Exchange, tokens: Tokens) -> list[list[outputs.Piece]]:
    if exchange.answer.status != 200 or exchange.method != "POST":
        return []
    if not exchange.path.startswith(("/v1/c", "/inference")) or exchange.path.endswith("/render"):
        return []
    if exchange.streamed:
        return outputs.of_stream(events(exchange.answer.body))
    fields = json.loads(exchange.body)
    echoed = tokens.text(fields["prompt"]) if fields.get("echo") else ""
    return outputs.of_body(exchange.answer.json, echoed)


def _sent_headers(exchange: Exchange) -> dict[str, str]:
    kept = ("content-type", "x-request-id", "x-data-parallel-rank")
    return {name: exchange.headers[name] for name in kept if name in exchange.headers}


def _kept_headers(answer: Answer) -> dict[str, str]:
    kept = {name: value for name, value in answer.headers.items() if name not in NOT_COMPARED}
    return dict(sorted(kept.items()))


def _value(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


def _headers(head: str) -> dict[str, str]:
    lines = [line.partition(":") for line in head.splitlines()[1:]]
    return {name.lower(): value.strip() for name, _, value in lines}


def _unchunk(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        out += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return out
