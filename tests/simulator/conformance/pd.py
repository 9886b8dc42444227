"""The recorded prefill and decode legs, sent again to pairs of simulated workers.

A decode leg carries what a prefill leg answered; here that is what the simulated prefill worker answered, so
every engine, request and port that the recording names is translated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.processes import free_ports
from simulator.tokens import Tokens
from tests.simulator.conformance import outputs
from tests.simulator.conformance.comparing import events, told
from tests.simulator.conformance.http import ABSENT, compare
from tests.simulator.conformance.outputs import Speller
from tests.simulator.conformance.rig import Answer, Rig

Json = dict[str, Any]

PREFILL_URL = "http://127.0.0.1:8200"
PREFILL_PORT, CLOSED_PORT = 5600, 5999
"""Side channels of the recording: the prefill worker's, and one where nobody listens."""
SETTINGS = {
    "num_blocks": 512,
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "transport": "inline",
    "handshake_seconds": 1.0,
}
FIRST_PAIR = [f"nixl_{number:02}_*" for number in range(15)] + [f"nixl_f{number:02}_*" for number in range(6)]
SECOND_PAIR = ["nixl2_*", "nixl3_*"]
KIMI_PAIR = ["k3_p1", "k3_d1", "k3_r1", "k3_g1", "k3_g2", "k3_dr"]
EVENTS_AFTER = "nixl_02_decode_leg"
"""After it the recorder wrote down what both workers had published."""
EXPIRED = "nixl2_l03_nudge"
"""Before it, the recorded prefill worker let go of everything whose lease had run out."""
KILLED = "nixl3_k03_decode_after_prefill_killed"
"""Before it, the recorded prefill worker was killed."""

IN_BETWEEN = "the ids of free blocks: what else the recorded server was asked meanwhile is not on record"
REASONS = {
    "nixl3_k00": IN_BETWEEN,
    "nixl3_k02": IN_BETWEEN,
    "k3_dr": ABSENT,
}
"""Exchanges that differ, and why they may."""


class Leg(NamedTuple):
    """A recorded exchange."""

    label: str
    on_prefill: bool
    path: str
    headers: dict[str, str]
    request: Json
    answer: Answer


def read_leg(path: Path) -> Leg:
    """One file."""
    read = json.loads(path.read_bytes())
    url, response = read["url"], read["response"]
    body = response.encode() if isinstance(response, str) else json.dumps(response).encode()
    headers = {name.lower(): value for name, value in read["resp_headers"].items()}
    sent = {"Content-Type": "application/json"} | (read["req_headers"] or {})
    return Leg(
        path.stem,
        url.startswith(PREFILL_URL),
        "/" + url.split("/", 3)[3],
        sent,
        read["request"],
        Answer(read["status"], headers, body),
    )


def legs(folder: Path, patterns: list[str]) -> list[Leg]:
    """The exchanges of one pair, in order."""
    found = [path for pattern in patterns for path in sorted(folder.glob(f"{pattern}.json"))]
    return [read_leg(path) for path in found]


class Pair:
    """A prefill and a decode worker, and what their names are in the recording."""

    def __init__(self, prefill: Rig, decode: Rig, tokens: Tokens) -> None:
        self.exits: list[int] = []
        self._prefill = prefill
        self._decode = decode
        self._tokens = tokens
        self._speller = Speller(tokens)
        self._kept: set[str] = set()
        """Prefill legs whose blocks are kept, by our names."""
        self._names: dict[Any, Any] = {CLOSED_PORT: free_ports(1)[0]}
        self.decode_dies_with(self.exits.append)

    def decode_dies_with(self, exit_process: Any) -> None:
        """What the decode worker does instead of ending this process."""
        self._decode.ranks.faults.exit = exit_process

    async def replay(self, leg: Leg) -> str:
        """Send it again; the differences, "" when there are none."""
        await self._before(leg)
        rig = self._prefill if leg.on_prefill else self._decode
        request = self._scripted(leg)
        answer = await rig.http("POST", leg.path, leg.headers, json.dumps(request).encode())
        self._learn(answer, leg.answer)
        await self._let_go(request, answer)
        return told(compare(self._in_recorded_names(answer), leg.answer))

    async def _before(self, leg: Leg) -> None:
        if leg.label == EXPIRED:
            self._prefill.engine.handoff.leases.close()  # type: ignore[union-attr]
        if leg.label == KILLED:
            await self._prefill.stop()

    async def _let_go(self, request: Json, answer: Answer) -> None:
        """After a decode leg the prefill worker has to hear of it: which blocks are free depends on that."""
        asked, answered = request.get("kv_transfer_params") or {}, _params(answer)
        if answered:
            self._kept.add(answered["remote_request_id"])
        name, handoff = asked.get("remote_request_id"), self._prefill.engine.handoff
        assert handoff is not None
        fetched = answer.status == 200 and asked.get("remote_engine_id") == handoff.engine_id
        if name in self._kept and fetched and self._prefill.running:
            self._kept.remove(name)
            await self._prefill.until(lambda: name not in handoff.leases)

    def _scripted(self, leg: Leg) -> Json:
        request = dict(leg.request)
        params = request.get("kv_transfer_params")
        if params:
            request["kv_transfer_params"] = {key: self._ours(value) for key, value in params.items()}
        said = self._said(leg)
        if said and leg.path.endswith("/generate"):
            sampling = dict(request["sampling_params"])
            request["sampling_params"] = sampling | {"extra_args": {"script_ids": said}}
        elif said:
            request["vllm_xargs"] = {"script_ids": said}
        return request

    def _said(self, leg: Leg) -> list[list[int]]:
        if leg.answer.status != 200 or "render" in leg.path or "script_ids" in json.dumps(leg.request):
            return []
        if leg.request.get("stream"):
            pieces = outputs.of_stream(events(leg.answer.body))
        else:
            pieces = outputs.of_body(leg.answer.json)
        return [self._speller.ids(one) for one in pieces]

    def _ours(self, value: Any) -> Any:
        return self._names.get(value, value) if isinstance(value, str | int) else value

    def _learn(self, ours: Answer, theirs: Answer) -> None:
        """What the recording calls by other names."""
        pairs = [_params(ours), _params(theirs)]
        if all(pairs):
            for key in ("remote_engine_id", "remote_request_id", "remote_port"):
                self._names[pairs[1][key]] = pairs[0][key]

    def _in_recorded_names(self, answer: Answer) -> Answer:
        params = _params(answer)
        if not params:
            return answer
        recorded = {ours: theirs for theirs, ours in self._names.items()}
        named = {
            key: recorded.get(value, value) if isinstance(value, str | int) else value
            for key, value in params.items()
        }
        return answer._replace(body=json.dumps(answer.json | {"kv_transfer_params": named}).encode())


def _params(answer: Answer) -> Json:
    if answer.status != 200 or not answer.headers.get("content-type", "").startswith("application/json"):
        return {}
    params: Json = answer.json.get("kv_transfer_params") or {}
    return params
