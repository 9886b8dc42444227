"""Workloads that a list of arrivals describes, and the closed loop of a benchmark client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random

from loadtests.fleet.request import BlockNames, Request, Segment


class OpenLoop:
    """Requests that arrive when they arrive."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests

    def start(self) -> Iterable[Request]:
        return self.requests

    def finished(self, request: Request, now: float) -> Iterable[Request]:
        return ()


class ClosedLoop:
    """`concurrency` clients that send the next request when an answer is complete."""

    def __init__(self, requests: Sequence[Request], concurrency: int) -> None:
        self._first = requests[:concurrency]
        self._left = iter(requests[concurrency:])

    def start(self) -> Iterable[Request]:
        return self._first

    def finished(self, request: Request, now: float) -> Iterable[Request]:
        following = next(self._left, None)
        return () if following is None else (at(following, now),)


def at(request: Request, arrival: float) -> Request:
    """The same request at another time."""
    return Request(
        arrival=arrival,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        blocks=request.blocks,
        session=request.session,
    )


def make_request(
    names: BlockNames, arrival: float, prompt: Sequence[Segment], answer: Segment, session: int = -1
) -> Request:
    """A request whose text is `prompt` and whose answer will be `answer`."""
    return Request(
        arrival=arrival,
        prompt_tokens=sum(length for _, length in prompt),
        output_tokens=answer[1],
        blocks=names.of((*prompt, answer)),
        session=session,
    )


def poisson(random: Random, rate: float, count: int) -> list[float]:
    """Arrival times, `rate` a second."""
    return list(accumulate(random.expovariate(rate) for _ in range(count)))


def lognormal(random: Random, median: float, sigma: float, least: int, most: int) -> int:
    """A length in tokens."""
    return int(min(max(random.lognormvariate(0.0, sigma) * median, least), most))


def shared_prompt(
    block_tokens: int, *, shared: int = 57_600, unique: int = 6_400, output: int = 400, concurrency: int = 64
) -> ClosedLoop:
    """NVIDIA's Kimi-K3 point: one long shared prefix, three rounds of `concurrency` clients."""
    names = BlockNames(block_tokens)
    requests = [
        make_request(names, 0.0, [("shared", shared), (("unique", n), unique)], (("answer", n), output))
        for n in range(3 * concurrency)
    ]
    return ClosedLoop(requests, concurrency)


def many_customers(
    seed: int,
    block_tokens: int,
    *,
    rate: float,
    count: int,
    customers: int = 150,
    context: int = 6_000,
    question: int = 1_200,
    output: int = 300,
) -> OpenLoop:
    """llm-d's case: every customer has one context, every question is new."""
    random = Random(f"customers {seed}")
    names = BlockNames(block_tokens)
    return OpenLoop(
        [
            make_request(
                names,
                arrival,
                [(("context", random.randrange(customers)), context), (("question", n), question)],
                (("answer", n), _around(random, output)),
            )
            for n, arrival in enumerate(poisson(random, rate, count))
        ]
    )


def no_reuse(seed: int, block_tokens: int, *, rate: float, count: int, median: float = 4_000) -> OpenLoop:
    """Nothing is ever shared: a router's knowledge of caches is worth nothing."""
    random = Random(f"no reuse {seed}")
    names = BlockNames(block_tokens)
    return OpenLoop(
        [
            make_request(
                names,
                arrival,
                [(n, lognormal(random, median, 1.0, 64, 100_000))],
                (("answer", n), _around(random, 300)),
            )
            for n, arrival in enumerate(poisson(random, rate, count))
        ]
    )


def hot_prefix(
    seed: int, block_tokens: int, *, rate: float, count: int, share: float = 0.8, prefix: int = 24_000
) -> OpenLoop:
    """Most requests share one prefix, and are far more than its one holder could serve."""
    random = Random(f"hot {seed}")
    names = BlockNames(block_tokens)
    requests = []
    for n, arrival in enumerate(poisson(random, rate, count)):
        own = ((n, lognormal(random, 1_500, 0.8, 64, 30_000)),)
        prompt = (("hot", prefix), *own) if random.random() < share else own
        requests.append(make_request(names, arrival, prompt, (("answer", n), _around(random, 200))))
    return OpenLoop(requests)


def chat(
    seed: int,
    block_tokens: int,
    *,
    rate: float,
    duration: float,
    system: int = 600,
    median: float = 3_500,
    sigma: float = 1.3,
    mean_turns: float = 3.0,
    think: float = 40.0,
) -> OpenLoop:
    """Conversations, `rate` new ones a second for `duration` seconds; turns do not wait for answers."""
    random = Random(f"chat {seed}")
    names = BlockNames(block_tokens)
    requests: list[Request] = []
    for n, begin in enumerate(poisson(random, rate, int(rate * duration))):
        text: list[Segment] = [("system", system)]
        arrival = begin
        turn = 0
        while turn == 0 or random.random() > 1 / mean_turns:
            size = lognormal(random, median if turn == 0 else median / 4, sigma, 16, 90_000)
            answer = (("answer", n, turn), lognormal(random, 250, 0.8, 8, 2_000))
            text.append((("user", n, turn), size))
            requests.append(make_request(names, arrival, text, answer))
            text.append(answer)
            arrival += random.expovariate(1 / think)
            turn += 1
    return OpenLoop(requests)


def _around(random: Random, mean: int) -> int:
    return max(1, round(random.uniform(0.5, 1.5) * mean))
