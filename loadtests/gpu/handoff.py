"""What the gateway adds to a handoff: time from prefill's answer to decode's first event, and its CPU.

The bare pair is asked by a client that does both legs itself, in turn with the gateway, on fresh prompts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from loadtests.gpu.client import Answer, Client, body, random_ids
from loadtests.gpu.front import Front
from loadtests.gpu.record import Record, median_ms
from loadtests.gpu.workers import Worker

IDLE_SECONDS = 5.0
SETTLE_SECONDS = 0.3
"""After a request, for its ends to be counted."""
DECODED = 4
"""Tokens of an answer: the handoff is the matter."""


class BarePair:
    """A client that knows the handoff."""

    def __init__(self, prefill: Worker, decode: Worker) -> None:
        self._prefill, self._decode = Client(prefill.url), Client(decode.url)

    def ask(self, prompt: list[int]) -> tuple[float, float, Answer]:
        """Seconds of the prefill leg, seconds from its answer to decode's first event, decode's answer."""
        wanted = {"do_remote_decode": True, "do_remote_prefill": False}
        leg = {**body(prompt, 1, kv_transfer_params=wanted), "stream": False}
        del leg["stream_options"]
        decode = msgspec.json.encode(body(prompt, DECODED))[:-1] + b',"kv_transfer_params":'
        answer = self._prefill.post(msgspec.json.encode(leg))
        began = time.perf_counter()
        assert answer.handle, answer.error
        decoded = self._decode.post(decode + msgspec.json.encode(answer.handle) + b"}")
        sent = time.perf_counter() - began - decoded.seconds
        return answer.seconds, sent + decoded.first_seconds, decoded


def measure_handoffs(
    pair: Front,
    single: Front,
    workers: Mapping[str, Worker],
    sizes: Sequence[int],
    each: int,
    record: Record,
    decoder: str,
    seed: int,
) -> None:
    """`pair` knows a prefill and a decode worker, `single` a plain one; the prompts belong to `seed`."""
    bare = BarePair(workers["p0"], workers[decoder])
    clients = {pair: pair.client(), single: single.client()}
    for number in range(3):  # connections, handshakes, first uses
        bare.ask(random_ids(500, seed=-seed - number - 1))
        for front, client in clients.items():
            client.post(body(random_ids(500, seed=-seed - 10 * number - front.port), DECODED))
    idle = {front: _idle(front) for front in clients}
    record("idle", cpu_ms_a_second={front.child.name: round(used * 1e3, 3) for front, used in idle.items()})
    for size in sizes:
        bare_legs, bare_handoffs, bare_firsts = [], [], []
        legs, handoffs, firsts, cpu, cpu_single = [], [], [], [], []
        for number in range(each):
            own = seed + size * 1000 + number * 3
            leg, handed, _ = bare.ask(random_ids(size, own))
            bare_legs.append(leg)
            bare_handoffs.append(handed)
            bare_firsts.append(leg + handed)
            before = pair.metrics()
            answer, used = _measured(pair, clients[pair], random_ids(size, own + 1), idle[pair])
            after = pair.metrics()
            assert not answer.error, answer.error
            firsts.append(answer.first_seconds)
            cpu.append(used)
            handoffs.append(_grown(before, after, "kvgateway_handoff_seconds_sum"))
            legs.append(_grown(before, after, "kvgateway_prefill_leg_seconds_sum"))
            _, used = _measured(single, clients[single], random_ids(size, own + 2), idle[single])
            cpu_single.append(used)
        record(
            "handoff",
            decode_worker=decoder,
            prompt_tokens=size,
            requests=each,
            bare_prefill_ms=median_ms(bare_legs),
            prefill_ms=median_ms(legs),
            bare_handoff_ms=median_ms(bare_handoffs),
            handoff_ms=median_ms(handoffs),
            bare_first_token_ms=median_ms(bare_firsts),
            first_token_ms=median_ms(firsts),
            cpu_ms=median_ms(cpu),
            cpu_ms_one_worker=median_ms(cpu_single),
        )


def _measured(front: Front, client: Client, prompt: list[int], idle: float) -> tuple[Answer, float]:
    """An answer, and the gateway's CPU seconds for it."""
    before, began = front.cpu(), time.perf_counter()
    answer = client.post(body(prompt, DECODED))
    time.sleep(SETTLE_SECONDS)
    return answer, front.cpu() - before - idle * (time.perf_counter() - began)


def _idle(front: Front) -> float:
    """CPU seconds a second of a gateway that has nothing to do."""
    before = front.cpu()
    time.sleep(IDLE_SECONDS)
    return (front.cpu() - before) / IDLE_SECONDS


def _grown(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)
