"""The same requests to a real hybrid engine and to a simulated worker: the same hits, the same events."""

from __future__ import annotations

import pytest
import zmq

from parsers.registry import get_format
from simulator.tokens import Tokens
from tests.live.simulator.engine import BUDGET, CONTEXT, SmallWorker, requests
from tests.live.worker import MODEL, request
from tests.simulator.conformance.parts import compare_messages
from tests.simulator.conformance.recorded import Message
from tests.simulator.conformance.rig import running

REQUESTS = 60


class Tap:
    """Everything that the engine publishes, from the beginning of its life."""

    def __init__(self, worker: SmallWorker) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.connect(f"tcp://127.0.0.1:{worker.replay_port}")

    def take(self, first: int) -> list[Message]:
        """All batches from `first` on."""
        self._socket.send_multipart([b"", first.to_bytes(8, "big")])
        found: list[Message] = []
        while (message := Message(self._socket.recv_multipart())).sequence >= 0:
            found.append(message)
        return found

    def close(self) -> None:
        self._socket.close(linger=0)


@pytest.mark.parametrize("seed", [1, 2])
async def test_hits_and_events_are_the_same(engine: SmallWorker, seed: int) -> None:
    tap = Tap(engine)
    before = len(tap.take(0))
    settings = {"model": MODEL, "max_model_len": CONTEXT, "max_num_batched_tokens": BUDGET, "max_num_seqs": 8}
    tokens = Tokens.load(get_format("kimi_k3").name, None)
    async with running(tokens, kv_groups="attention+mamba", num_blocks=engine.blocks, **settings) as rig:
        if before:
            # An earlier test's prefixes are in the engine: both begin with none, and say so first.
            assert request(f"{engine.url}/reset_prefix_cache", {})[0] == 200
            await rig.http("POST", "/reset_prefix_cache")
        hits = [(engine.ask(ask), await rig.ask(ask)) for ask in requests(seed, REQUESTS)]
        ours = await rig.replay(0)
    theirs = tap.take(before)
    tap.close()
    assert [pair for pair in hits if pair[0] != pair[1]] == []
    assert any(event["type"] == "BlockRemoved" for message in theirs for event in message.events)
    assert compare_messages(_numbered(ours[:-1]), _numbered(theirs)) == ""


def _numbered(messages: list[Message]) -> list[Message]:
    """With sequence numbers from 0."""
    return [
        Message([*message.frames[:-2], number.to_bytes(8, "big"), message.frames[-1]])
        for number, message in enumerate(messages)
    ]
