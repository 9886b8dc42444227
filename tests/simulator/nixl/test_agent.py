"""The thread that owns a NIXL agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fabric.nixl import Runtime
from simulator.kv.arena import Arena
from simulator.kv.metadata import AgentMetadata, describe
from simulator.kv.transport import Indices, TransferError
from simulator.nixl.agent import NixlThread

PATIENCE = 60
StartAgent = Callable[[str], "Side"]


class Side:
    """An agent, its memory and what it was told."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.arena = Arena(64, 32, 128)
        self.heard: list[bytes] = []
        self.news = threading.Event()
        self.thread = NixlThread(runtime, name, self.arena, self._hear)
        blob = self.thread.start().result(PATIENCE)
        self.metadata: AgentMetadata = describe(name, blob, self.arena, 0)

    def _hear(self, message: bytes) -> None:
        self.heard.append(message)
        self.news.set()


@pytest.fixture
def side(nixl: Runtime) -> Iterator[StartAgent]:
    sides: list[Side] = []

    def start(name: str, runtime: Runtime | None = None) -> Side:
        sides.append(Side(runtime or nixl, name))
        return sides[-1]

    yield start
    for one in sides:
        one.thread.stop()
        assert not one.thread._thread.is_alive()


def indices(*blocks: int) -> Indices:
    return np.array(blocks, dtype=np.int32)


def test_a_read_gathers_scattered_blocks_and_tells_the_peer(side: StartAgent) -> None:
    prefill, decode = side("p"), side("d")
    prefill.arena.blocks[:] = np.arange(64, dtype=np.uint64)[:, None]
    peer = decode.thread.connect(prefill.metadata).result(PATIENCE)
    done = decode.thread.read(peer, indices(9, 3, 60), indices(7, 50, 2), b"r:1").result(PATIENCE)
    assert done.nbytes == 3 * 4096
    assert done.descriptors == 3
    assert decode.arena.blocks[[9, 3, 60], 0].tolist() == [7, 50, 2]
    assert decode.arena.blocks[[8, 4, 61], 0].tolist() == [0, 0, 0]
    assert prefill.news.wait(PATIENCE)
    assert prefill.heard == [b"r:1"]


def test_neighbours_become_one_descriptor(side: StartAgent) -> None:
    prefill, decode = side("p"), side("d")
    peer = decode.thread.connect(prefill.metadata).result(PATIENCE)
    done = decode.thread.read(peer, indices(1, 2, 3), indices(5, 6, 7), b"r:1").result(PATIENCE)
    assert (done.descriptors, done.nbytes) == (1, 3 * 4096)


def test_a_notification_alone(side: StartAgent) -> None:
    prefill, decode = side("p"), side("d")
    peer = decode.thread.connect(prefill.metadata).result(PATIENCE)
    decode.thread.notify(peer, b"HB:a,b").result(PATIENCE)
    assert prefill.news.wait(PATIENCE)
    assert prefill.heard == [b"HB:a,b"]


def test_what_nixl_refuses_is_a_transfer_error(side: StartAgent) -> None:
    prefill, decode = side("p"), side("d")
    peer = decode.thread.connect(prefill.metadata).result(PATIENCE)
    with pytest.raises(TransferError, match="NIXL"):
        decode.thread.read(peer, indices(1), indices(64), b"r:1").result(PATIENCE)
    prefill.metadata.agent_metadata = b"nonsense"
    with pytest.raises(TransferError, match="NIXL"):
        decode.thread.connect(prefill.metadata).result(PATIENCE)
    done = decode.thread.read(peer, indices(1), indices(63), b"r:2").result(PATIENCE)
    assert done.nbytes == 4096


def test_a_peer_that_was_forgotten_can_come_back(side: StartAgent) -> None:
    prefill, decode = side("p"), side("d")
    for _ in range(2):
        peer = decode.thread.connect(prefill.metadata).result(PATIENCE)
        decode.thread.read(peer, indices(1), indices(1), b"r:1").result(PATIENCE)
        decode.thread.forget(peer).result(PATIENCE)


def test_every_handle_is_released(side: Callable[..., Side], nixl: Runtime) -> None:
    api = _Remembering(nixl.api)
    prefill, decode = side("p"), side("d", nixl._replace(api=api))
    peer = decode.thread.connect(prefill.metadata).result(PATIENCE)
    for blocks in (indices(1), indices(64), indices(2)):
        decode.thread.read(peer, indices(1), blocks, b"r:1").exception(PATIENCE)
    decode.thread.stop()
    assert [handle._released for handle in api.handles] == [True, True]  # there was none for the one refused


def test_the_caller_may_lose_interest(side: StartAgent) -> None:
    prefill, decode = side("p"), side("d")
    peer = decode.thread.connect(prefill.metadata).result(PATIENCE)
    for _ in range(20):
        decode.thread.read(peer, indices(1), indices(2), b"r:1").cancel()
        decode.thread.notify(peer, b"x:1").cancel()
    assert decode.thread.read(peer, indices(1), indices(2), b"r:2").result(PATIENCE).nbytes == 4096


class _Remembering:
    """NIXL's API with agents whose transfer handles are kept."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.handles: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def nixl_agent(self, *args: Any) -> Any:
        agent = self._api.nixl_agent(*args)
        make = agent.make_prepped_xfer

        def remembered(*args: Any) -> Any:
            self.handles.append(make(*args))
            return self.handles[-1]

        agent.make_prepped_xfer = remembered
        return agent
