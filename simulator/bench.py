"""`python -m simulator.bench`: what a simulated pair's READs reach beside NIXL alone, in one run.

NIXL alone: this process reads blocks of another one, nothing between it and the library, once in a row and
once in random order. The simulated pair: a prefill worker and a decode worker, legs over HTTP, first into
memory that nobody has touched, then with pools whose free blocks lie about as after use. Sizes are the same;
figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import aiohttp
import numpy as np

from fabric.nixl import NixlMissingError, load
from simulator.cli import ready_url
from simulator.kv.arena import Arena

BLOCK_SIZE = 32
SHORT_TOKENS = 40
CLIENTS = 32
WORKER = ["--block-size", str(BLOCK_SIZE), "--transport", "nixl", "--speedup", "1000"]


class Result(NamedTuple):
    """One READ."""

    nbytes: float
    descriptors: float
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """0; 2 without NIXL."""
    parser = argparse.ArgumentParser(prog="simulator.bench", description=__doc__)
    parser.add_argument("--tokens", type=int, default=64_000, help="tokens of a prompt (default 64000)")
    parser.add_argument("--bytes-per-token", type=int, default=128, help="KV of a token (default 128)")
    parser.add_argument("--runs", type=int, default=5, help="READs of each kind (default 5)")
    options = parser.parse_args(argv)
    try:
        load()
    except NixlMissingError as error:
        print(error, file=sys.stderr)
        return 2
    blocks = -(-options.tokens // BLOCK_SIZE)
    size = BLOCK_SIZE * options.bytes_per_token
    print(f"{blocks} blocks of {size} bytes, {blocks * size / 1e6:.1f} MB; medians of {options.runs}")
    print(f"{'':24}  descriptors       ms     GB/s")
    _show("copy in one process", [_copy(blocks * size) for _ in range(options.runs)])
    for name, results in _alone(blocks, options.bytes_per_token, options.runs).items():
        _show(f"NIXL alone, {name}", results)
    path, pairs = _simulated(blocks, options)
    for name, results in pairs.items():
        _show(f"simulated, {name}", results)
    print(f"the simulated workers' path: {path}")
    return 0


def _show(name: str, results: Sequence[Result]) -> None:
    seconds = statistics.median(result.seconds for result in results)
    rate = statistics.median(result.nbytes / result.seconds for result in results) / 1e9
    descriptors = statistics.median(result.descriptors for result in results)
    print(f"{name:24}  {descriptors:11.0f} {seconds * 1e3:8.2f} {rate:8.2f}")


def _copy(nbytes: int) -> Result:
    source, target = np.ones(nbytes, dtype=np.uint8), np.zeros(nbytes, dtype=np.uint8)
    started = time.perf_counter()
    target[:] = source
    return Result(nbytes, 1, time.perf_counter() - started)


def _alone(blocks: int, bytes_per_token: int, runs: int) -> dict[str, list[Result]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, blocks, bytes_per_token))
    process.start()
    try:
        agent, arena, here = _agent("reader", blocks, bytes_per_token)
        blob, address = ours.recv()
        peer = agent.add_remote_agent(blob)
        there = agent.prep_xfer_dlist(peer, _rows(address, arena), "DRAM")
        in_row = np.arange(blocks, dtype=np.int32)
        anyhow = np.random.default_rng(0).permutation(blocks).astype(np.int32)
        _read(agent, here, in_row, there, in_row)  # pays for the connection
        return {
            name: [_read(agent, here, in_row, there, order) for _ in range(runs)]
            for name, order in (("in a row", in_row), ("scattered", anyhow))
        }
    finally:
        ours.send(None)
        process.join()


def _serve(pipe: Connection, blocks: int, bytes_per_token: int) -> None:
    agent, arena, _ = _agent("served", blocks, bytes_per_token)
    arena.blocks[:] = 1
    pipe.send((agent.get_agent_metadata(), arena.address))
    while not pipe.poll(0.002):
        agent.get_new_notifs()  # lets the library answer


def _agent(name: str, blocks: int, bytes_per_token: int) -> tuple[Any, Arena, Any]:
    api = load().api
    config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"], capture_telemetry=True)
    agent, arena = api.nixl_agent(name, config), Arena(blocks, BLOCK_SIZE, bytes_per_token)
    agent.register_memory([(arena.address, arena.nbytes, 0, "")], "DRAM")
    return agent, arena, agent.prep_xfer_dlist("NIXL_INIT_AGENT", _rows(arena.address, arena), "DRAM")


def _rows(address: int, arena: Arena) -> Any:
    starts = np.uint64(address) + np.arange(arena.num_blocks, dtype=np.uint64) * np.uint64(arena.block_bytes)
    size = np.full(arena.num_blocks, arena.block_bytes, dtype=np.uint64)
    return np.stack([starts, size, np.zeros_like(size)], axis=1)


def _read(agent: Any, here: Any, local: Any, there: Any, remote: Any) -> Result:
    started = time.perf_counter()
    handle = agent.make_prepped_xfer("READ", here, local, there, remote, b"")
    try:
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        seconds = time.perf_counter() - started
        counts = agent.get_xfer_telemetry(handle)
        return Result(counts.totalBytes, counts.descCount, seconds)
    finally:
        handle.release()


def _simulated(blocks: int, options: argparse.Namespace) -> tuple[str, dict[str, list[Result]]]:
    pool = blocks + blocks // 4
    command = [sys.executable, "-m", "simulator", *WORKER, "--num-blocks", str(pool)]
    command += ["--kv-bytes-per-token", str(options.bytes_per_token)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        urls = [_url(process) for process in processes]
        return asyncio.run(_legs(urls, pool, options.tokens, options.runs))
    finally:
        for process in processes:
            process.terminate()
            process.wait()


async def _legs(
    urls: Sequence[str], pool: int, tokens: int, runs: int
) -> tuple[str, dict[str, list[Result]]]:
    async with aiohttp.ClientSession() as client:
        dice = random.Random(0)
        await _pair(client, urls, dice, 2 * BLOCK_SIZE)  # pays for the handshake
        fresh = [await _pair(client, urls, dice, tokens)]
        await asyncio.gather(*(_use(client, url, dice, pool) for url in urls))
        used = [await _pair(client, urls, dice, tokens) for _ in range(runs)]
        path: str = (await _state(client, urls[1]))["transport"]
        return path, {"first touch": fresh, "used pools": used}


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    url = ready_url(process.stdout.readline())
    if url is None:
        raise RuntimeError("a simulated worker did not start")
    return url


async def _pair(
    client: aiohttp.ClientSession, urls: Sequence[str], dice: random.Random, tokens: int
) -> Result:
    """One prompt through both legs: what the decode worker says of its READ."""
    before = await _state(client, urls[1])
    ids = [dice.randrange(1000) for _ in range(tokens)]
    answer = await _post(client, urls[0], ids, {"do_remote_decode": True})
    await _post(client, urls[1], ids, answer["kv_transfer_params"])
    after = await _state(client, urls[1])
    names = ("transferred_bytes", "transfer_descriptors", "transfer_seconds")
    return Result(*(after[name] - before[name] for name in names))


async def _use(client: aiohttp.ClientSession, url: str, dice: random.Random, blocks: int) -> None:
    """Short prompts, many at once, until every block has been used and given back out of order."""

    async def talk() -> None:
        for _ in range(blocks // CLIENTS + 1):
            ids = [dice.randrange(1000) for _ in range(SHORT_TOKENS)]
            await _post(client, url, ids, None, dice.randrange(1, 30))

    await asyncio.gather(*(talk() for _ in range(CLIENTS)))


async def _post(
    client: aiohttp.ClientSession, url: str, ids: list[int], params: Any, max_tokens: int = 1
) -> dict[str, Any]:
    body = {"prompt": ids, "max_tokens": max_tokens, "kv_transfer_params": params}
    async with client.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        answer: dict[str, Any] = await response.json()
        return answer


async def _state(client: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with client.get(f"{url}/sim/state") as response:
        state: dict[str, Any] = (await response.json())["ranks"][0]
        return state


if __name__ == "__main__":
    sys.exit(main())
