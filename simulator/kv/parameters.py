"""`kv_transfer_params` of requests, and of a prefill leg's answer, in vLLM 0.32's keys."""

from __future__ import annotations

from typing import Any

import msgspec

BlockGroups = list[list[int]]
"""Block ids by KV-cache group."""

_REMOTE = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class BadParametersError(Exception):
    """Parameters that a real engine does not survive."""


class TransferParameters(msgspec.Struct, frozen=True, kw_only=True):
    """As a request has them. A prefill leg sets `do_remote_decode`, a decode leg `do_remote_prefill`."""

    do_remote_prefill: bool | None = False
    do_remote_decode: bool | None = False
    remote_block_ids: BlockGroups | None = None
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    tp_size: int | None = 1
    remote_num_tokens: int | None = None
    remote_prefill_cached_tokens: int | None = None


class RemoteBlocks(msgspec.Struct, frozen=True):
    """Complete parameters of a decode leg: where the prompt's blocks are."""

    engine_id: str
    request_id: str
    endpoint: str
    blocks: BlockGroups
    cached_tokens: int | None
    """What the prefill worker had cached; it goes into this worker's usage."""


def read_parameters(value: Any) -> TransferParameters | None:
    """Raises BadParametersError: not what a connector can read."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, TransferParameters)
    except msgspec.ValidationError as error:
        raise BadParametersError(str(error)) from None


def remote_blocks(parameters: TransferParameters) -> RemoteBlocks:
    """Raises BadParametersError: something is missing."""
    missing = [name for name in _REMOTE if getattr(parameters, name) is None]
    if missing:
        raise BadParametersError(f"kv_transfer_params without {', '.join(missing)}")
    assert parameters.remote_engine_id is not None
    assert parameters.remote_request_id is not None
    assert parameters.remote_block_ids is not None
    return RemoteBlocks(
        parameters.remote_engine_id,
        parameters.remote_request_id,
        f"tcp://{parameters.remote_host}:{parameters.remote_port}",
        parameters.remote_block_ids,
        parameters.remote_prefill_cached_tokens,
    )


def prefill_answer(
    *,
    blocks: BlockGroups,
    engine_id: str,
    request_id: str,
    host: str,
    port: int,
    num_tokens: int,
    cached_tokens: int | None,
) -> dict[str, Any]:
    """What a prefill leg returns: parameters for the decode leg, to be passed on as they are.

    `cached_tokens` are there only for a leg that said all in one step.
    """
    answer = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": blocks,
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": host,
        "remote_port": port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": num_tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }
    return answer if cached_tokens is None else answer | {"remote_prefill_cached_tokens": cached_tokens}
