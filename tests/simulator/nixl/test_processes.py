"""Bytes that NIXL moves from one worker's process to another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from simulator.kv.arena import Arena
from simulator.kv.content import START, advance, slots
from simulator.kv.metadata import AgentMetadata, Payload
from simulator.nixl.agent import NixlThread

Process = Any  # conftest's, which cannot be imported
Prompt = Callable[[int], list[int]]
Start = Callable[..., Process]
PATIENCE = 60


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 1000, 20_000])
def test_disaggregated_equals_aggregated(pair: tuple[Process, Process], prompt: Prompt, length: int) -> None:
    prefill, decode = pair
    ids = prompt(length)
    text = decode.text(ids, kv_transfer_params=prefill.prefill(ids))
    assert text == prefill.text(ids, cache_salt="alone")
    assert decode.state()["sim_kv_violations"] == 0
    prefill.until(pinned_requests=0)


def test_scattered_blocks(pair: tuple[Process, Process], prompt: Prompt) -> None:
    prefill, decode = pair
    for worker in pair:  # short prompts of which every other one goes leave holes of one block
        for count in (20, 60, 20, 60):
            worker.text(prompt(count))
    ids = prompt(900)
    assert decode.text(ids, kv_transfer_params=prefill.prefill(ids)) == prefill.text(ids, cache_salt="alone")


def test_another_prompts_parameters_answer_200_and_wrong(
    pair: tuple[Process, Process], prompt: Prompt
) -> None:
    prefill, decode = pair
    before = decode.state()["sim_kv_violations"]
    mine, other = prompt(300), prompt(300)
    text = decode.text(mine, kv_transfer_params=prefill.prefill(other))
    assert text != prefill.text(mine, cache_salt="alone")
    assert decode.state()["sim_kv_violations"] >= before + 10
    prefill.until(pinned_requests=0)


def test_what_moved_and_how_is_reported(pair: tuple[Process, Process], prompt: Prompt) -> None:
    prefill, decode = pair
    before = decode.state()
    ids = prompt(320)
    decode.text(ids, kv_transfer_params=prefill.prefill(ids))
    after = decode.state()
    moved = after["transferred_bytes"] - before["transferred_bytes"]
    assert moved >= 10 * after["block_bytes"]
    assert after["transfer_seconds"] > before["transfer_seconds"]
    label, _, path = after["transport"].partition(": ")
    assert label == "nixl"
    assert any(known in path for known in ("cma/", "tcp/", "sysv/", "posix/", "rc_", "self/")), path


def test_a_foreign_reader_gets_the_tokens_bytes(worker: Start, prompt: Prompt, nixl: Any) -> None:
    """Another engine's decode side, by the wire alone: handshake, READ, notification."""
    prefill = worker("--role", "prefill")
    ids = prompt(100)
    params = prefill.prefill(ids)
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.connect(f"tcp://{params['remote_host']}:{params['remote_port']}")
        socket.send(msgspec.msgpack.encode((b"get_meta_msg", 0, 0)))
        payload = msgspec.msgpack.decode(socket.recv_multipart()[0], type=Payload)
    metadata = msgspec.msgpack.decode(payload.agent_metadata_bytes, type=AgentMetadata)
    assert metadata.engine_id == params["remote_engine_id"]
    arena = Arena(8, 32, 128)
    thread = NixlThread(nixl, "reader", arena, lambda message: None)
    try:
        thread.start().result(PATIENCE)
        peer = thread.connect(metadata).result(PATIENCE)
        remote = np.array(params["remote_block_ids"][0], dtype=np.int32)
        notification = f"{params['remote_request_id']}:1".encode()
        done = thread.read(peer, np.array([5, 2, 7, 1], dtype=np.int32), remote, notification).result(
            PATIENCE
        )
        assert done.nbytes == 4 * 4096
        expected = slots(advance(START, np.array(ids, dtype=np.uint64)), 16)
        rows = np.concatenate([arena.slots[block * 32 : block * 32 + 32] for block in (5, 2, 7, 1)])
        assert (rows[:100] == expected).all()
        prefill.until(pinned_requests=0, expired_requests=0, late_notifications=0)
    finally:
        thread.stop()


def test_a_prefill_worker_that_was_killed(worker: Start, prompt: Prompt) -> None:
    prefill, decode = worker("--role", "prefill"), worker("--role", "decode")
    ids = prompt(100)
    text = decode.text(ids, kv_transfer_params=prefill.prefill(ids))  # the two know each other now
    params = prefill.prefill(prompt(90))
    prefill.popen.send_signal(signal.SIGKILL)
    prefill.popen.wait(PATIENCE)
    status, answer = decode.complete(prompt(90), kv_transfer_params=params)
    assert (status, answer["error"]["message"]) == (500, "Internal server error")
    assert decode.state()["failed_transfers"] == 1
    assert decode.text(ids) == text


def test_an_engine_id_belongs_to_one_start(pair: tuple[Process, Process]) -> None:
    assert len({worker.state()["engine_id"] for worker in pair}) == 2


def test_incomplete_parameters_end_the_process(worker: Start, prompt: Prompt) -> None:
    decode = worker("--role", "decode")
    status, answer = decode.complete(prompt(50), kv_transfer_params={"do_remote_prefill": True})
    assert (status, answer["error"]["message"].partition(".")[0]) == (500, "EngineCore encountered an issue")
    assert decode.popen.wait(PATIENCE) == 1


def test_without_tcp_there_is_no_agent(nixl: Any) -> None:
    command = [sys.executable, "-m", "simulator", "--role", "prefill"]
    done = subprocess.run(
        command, env=os.environ | {"UCX_TLS": "posix,self"}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert "UCX_TLS=posix,self has to allow tcp" in done.stderr


def test_a_million_tokens(worker: Start) -> None:
    prefill, decode = (worker("--role", role, "--num-blocks", "32000") for role in ("prefill", "decode"))
    ids = [300 + index * index % 1009 for index in range(1_000_000)]
    text = decode.text(ids, kv_transfer_params=prefill.prefill(ids))
    state = decode.state()
    assert (state["sim_kv_violations"], state["transferred_bytes"]) == (0, 31_250 * 4096)
    assert text == prefill.text(ids)
