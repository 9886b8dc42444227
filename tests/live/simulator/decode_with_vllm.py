"""Runs in an environment with vLLM: decodes a simulated worker's bytes with vLLM's own classes.

Standard input is JSON {"events": [hex, ...], "handshake": hex}; so is standard output, with what came out.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
from vllm.distributed.kv_events import KVEventBatch  # type: ignore[import-not-found]
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (  # type: ignore[import-not-found]
    NixlAgentMetadata,
    NixlHandshakePayload,
)


def told(value: Any) -> Any:
    """A decoded object as JSON, its class included."""
    fields = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else vars(value)
    return {"class": type(value).__name__} | {name: shown(field) for name, field in fields.items()}


def shown(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def main() -> None:
    asked = json.load(sys.stdin)
    batches = [msgspec.msgpack.decode(bytes.fromhex(one), type=KVEventBatch) for one in asked["events"]]
    payload = msgspec.msgpack.decode(bytes.fromhex(asked["handshake"]), type=NixlHandshakePayload)
    metadata = msgspec.msgpack.decode(payload.agent_metadata_bytes, type=NixlAgentMetadata)
    answer = {
        "batches": [
            {"rank": batch.data_parallel_rank, "events": list(map(told, batch.events))} for batch in batches
        ],
        "handshake": told(payload),
        "metadata": told(metadata),
    }
    json.dump(answer, sys.stdout)


main()
