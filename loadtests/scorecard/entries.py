"""What the scorecard claims: each entry is a quantity of ours over a peer's, and the most it may be."""

from __future__ import annotations

import msgspec

OURS = "kvgateway"
PAIR = "kvgateway-pair"
"""The same in front of a prefill and a decode worker."""
DYNAMO = "dynamo"
VLLM_ROUTER = "vllm-router"


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of load, the same for everyone who is measured with it."""

    name: str
    what: str
    concurrency: int
    requests: int
    warmup: int
    max_tokens: int
    """Tokens that a request asks for."""
    stream: bool
    step_ms: int = 0
    """Milliseconds between the tokens of the worker; 0 as fast as it can."""

    def body(self) -> dict[str, object]:
        body: dict[str, object] = {
            "model": "mock",
            "messages": [{"role": "user", "content": "Write a one-sentence readiness check."}],
            "max_tokens": self.max_tokens,
        }
        if self.stream:
            body["stream"] = True
        if self.step_ms:
            body["seed"] = self.step_ms  # how the mock worker is told its pace
        return body


STREAMS = Phase(
    name="streams64",
    what="64 streams of 128 tokens, one token a stream each 10 ms",
    concurrency=64,
    requests=128,
    warmup=0,
    max_tokens=128,
    stream=True,
    step_ms=10,
)
REQUESTS = Phase(
    name="requests32",
    what="non-streamed requests, 32 at a time",
    concurrency=32,
    requests=600,
    warmup=64,
    max_tokens=16,
    stream=False,
)
FIRST_TOKEN = Phase(
    name="first_token",
    what="one stream of 4 tokens after another on one connection",
    concurrency=1,
    requests=150,
    warmup=20,
    max_tokens=4,
    stream=True,
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Holds when the median of our `quantity` is at most `target` times the peer's in the same run.

    `server` is what is measured: the gateway, or the gateway in another use.
    """

    name: str
    phase: Phase
    quantity: str
    """A field of `Sample`."""
    peer: str
    target: float
    server: str = OURS


ENTRIES = (
    Entry(
        name="stream_cpu_dynamo",
        phase=STREAMS,
        quantity="cpu_us_per_token",
        peer=DYNAMO,
        target=0.8,
    ),
    Entry(
        name="stream_cpu_vllm_router",
        phase=STREAMS,
        quantity="cpu_us_per_token",
        peer=VLLM_ROUTER,
        target=1.6,
    ),
    Entry(
        name="request_cpu_dynamo",
        phase=REQUESTS,
        quantity="cpu_us_per_request",
        peer=DYNAMO,
        target=0.8,
    ),
    Entry(
        name="first_token_vllm_router",
        phase=FIRST_TOKEN,
        quantity="first_token_us",
        peer=VLLM_ROUTER,
        target=1.5,
    ),
    Entry(
        name="pair_cpu_aggregated",
        phase=REQUESTS,
        quantity="cpu_us_per_request",
        server=PAIR,
        peer=OURS,
        target=1.8,
    ),
)
