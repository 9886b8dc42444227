"""vLLM's own classes decode what a simulated worker sends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from simulator.kv.metadata import GET_META
from tests.simulator.conformance import models
from tests.simulator.conformance.recorded import Message
from tests.simulator.conformance.rig import Ask, Rig, running

SCRIPT = Path(__file__).with_name("decode_with_vllm.py")
GROUPS = ["attention", "attention+mamba", "attention+sliding_window:64*3", "mla+mamba*3"]
PATIENCE = 180


async def test_events_and_handshake(home: Path) -> None:
    messages: list[Message] = []
    for groups in GROUPS:
        messages += await _traffic(groups)
    handshake = await _handshake()
    asked = {
        "events": [message.frames[-1].hex() for message in messages],
        "handshake": handshake.hex(),
    }
    decoded = _decoded(home / "venv/bin/python", asked)
    for message, batch in zip(messages, decoded["batches"], strict=True):
        assert batch["rank"] == 0
        for sent, event in zip(message.events, batch["events"], strict=True):
            _check_event(sent, event)
    kinds = {event["class"] for batch in decoded["batches"] for event in batch["events"]}
    assert kinds == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    assert decoded["handshake"]["class"] == "NixlHandshakePayload"
    assert decoded["metadata"]["class"] == "NixlAgentMetadata"
    assert decoded["metadata"]["num_blocks"] == 512
    assert decoded["metadata"]["block_size"] == 32


def _check_event(sent: dict[str, Any], event: dict[str, Any]) -> None:
    assert event["class"] == sent["type"]
    for name, value in sent.items():
        if name != "type":
            assert event[name] == value, name
    unsent = {name: value for name, value in event.items() if name not in sent and name != "class"}
    assert not any(unsent.values()), unsent


def _decoded(python: Path, asked: dict[str, Any]) -> Any:
    environment = {"PATH": "/usr/bin:/bin", "VLLM_NO_USAGE_STATS": "1", "HOME": str(Path.home())}
    done = subprocess.run(
        [str(python), str(SCRIPT)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


async def _traffic(groups: str) -> list[Message]:
    """Stores, duplicates, salted blocks, decode-filled blocks, evictions and a reset."""
    async with running(models.ids_only(), num_blocks=64, max_num_batched_tokens=256, kv_groups=groups) as rig:
        await _some_requests(rig)
        return await rig.messages()


async def _some_requests(rig: Rig) -> None:
    for number in range(6):
        prompt = [number, *range(100, 100 + 60 * (number + 1))]
        await rig.ask(Ask(prompt, [7] * 40, "salt" if number % 2 else None))
        await rig.ask(Ask(prompt[:64], [8]))
    await rig.http("POST", "/reset_prefix_cache")
    await rig.ask(Ask([1] * 40, [9]))


async def _handshake() -> bytes:
    """What a worker's side channel answers."""
    async with running(models.ids_only(), num_blocks=512, transport="inline") as rig:
        handoff = rig.engine.handoff
        assert handoff is not None
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.REQ)
        socket.connect(f"tcp://127.0.0.1:{handoff.port}")
        await socket.send(msgspec.msgpack.encode((GET_META, 0, 0)))
        payload, _ = await socket.recv_multipart()
        context.destroy(linger=0)
        assert isinstance(payload, bytes)
        return payload
