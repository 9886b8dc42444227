"""vLLM's NixlConnector, pull mode: prefill answers with parameters, decode reads the blocks itself.

The prefill leg is not streamed (a streamed one never returns parameters), generates one token, which is
dropped since decode makes it again, and pins its blocks until they have been read or the lease runs out.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec

from gateway.engines.base import EngineClient, EngineError, EngineRequest
from gateway.engines.vllm import PARAMETERS
from gateway.handoff.base import Handle, PrefillResult
from gateway.handoff.pulse import Pulse

REMOTE_DECODE = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)
MAX_PULSE_SECONDS = 0.25
REMEMBERED = 10_000
"""Handles of which it is known that they were given out."""

REQUIRED: dict[str, type | tuple[type, ...]] = {
    "remote_engine_id": str,
    "remote_request_id": str,
    "remote_host": str,
    "remote_port": int,
    "remote_block_ids": list,
}
"""Without any of these a decode worker computes the prompt itself, or dies."""


class NixlPull:
    """The handoff of vLLM workers; see `Handoff`."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._pulse = Pulse(min(MAX_PULSE_SECONDS, lease_seconds / 20))
        self._seen: dict[tuple[str, str], None] = {}
        """Engine and request of the latest handles, oldest first."""

    async def prefill(self, engine: EngineClient, request: EngineRequest) -> PrefillResult:
        """Raises EngineError: the worker's own, or a retryable one for parameters not whole or not new."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._pulse.begin()
        try:
            answer = await engine.prefill(prefill_request(request))
            since = max(began, self._pulse.read_until)
        finally:
            self._pulse.end()
        told = check_parameters(answer.kv_transfer_params)
        self._check_new(told["remote_engine_id"], told["remote_request_id"])
        engine.identified(
            re.sub(r"_dp\d+$", "", told["remote_engine_id"]), f"{told['remote_host']}:{told['remote_port']}"
        )
        parameters = {PARAMETERS: answer.kv_transfer_params}
        handle = Handle(parameters, request.token_ids_json, self._lease_seconds, loop.time, since)
        return PrefillResult(handle, answer.cached_tokens)

    def _check_new(self, engine_id: str, request_id: str) -> None:
        """A worker that gives the parameters of an earlier leg would have another prompt's blocks read."""
        if (engine_id, request_id) in self._seen:
            raise EngineError("the prefill worker gave the KV handle of an earlier request", retryable=True)
        self._seen[engine_id, request_id] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]


def prefill_request(request: EngineRequest) -> EngineRequest:
    """The prefill leg of a request: one token of one choice, parameters asked for."""
    sampling = {name: value for name, value in request.sampling.items() if name not in ("min_tokens", "n")}
    return msgspec.structs.replace(
        request,
        sampling={**sampling, "max_tokens": b"1"},
        top_level={**request.top_level, PARAMETERS: REMOTE_DECODE},
    )


def check_parameters(raw: bytes) -> dict[str, Any]:
    """The parameters. Incomplete ones kill a decode worker and go no further. Raises EngineError."""
    try:
        parameters = msgspec.json.decode(raw or b"null")
    except msgspec.DecodeError:
        parameters = None
    missing = _missing(parameters)
    if missing is not None:
        raise EngineError(f"the prefill worker gave no usable KV handle: {missing}", retryable=True)
    whole: dict[str, Any] = parameters
    return whole


def _missing(parameters: Any) -> str | None:
    if not isinstance(parameters, dict):
        return "no parameters"
    if parameters.get("do_remote_prefill") is not True:
        return "do_remote_prefill is not true"
    for name, kind in REQUIRED.items():
        value = parameters.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) or value in ("", []):
            return f"{name} is missing"
    return None
