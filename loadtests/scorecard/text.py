"""What turning chats into ids and ids into events costs, in this process and of CPU time alone.

Peers are measured beside it: a bare loop over the same ids, tiktoken on the same text, or the same work
cold or short.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import thread_time

import msgspec

from gateway.api.chat_render import ChatStream
from gateway.api.sse import encode_text
from gateway.app import GC_THRESHOLDS
from gateway.tokens.tokenizer import Tokenizer
from loadtests.scorecard.evaluate import UNIT, Measurement
from loadtests.scorecard.servers import vocabulary
from loadtests.scorecard.text_material import STREAMS, TOOLS, Material, as_received
from parsers.base import Chat, EncodedChat, OutputOptions, OutputParser
from parsers.registry import DEFAULT_FORMAT, get_format

FORMAT = get_format(DEFAULT_FORMAT)
WORDS = {"reasoning": 16_000, "argument": 64_000, "mixed": 64_000}
SHORT_WORDS, LONG_WORDS = 1_000, 64_000
TURN = 500
MESSAGES, NEW_TOKENS = 100, 1_000
BARE = "bare loop"
_FRAME = (
    b'data: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"moonshotai/Kimi-K3","choices":[{"index":0,"delta":{"content":%b},"finish_reason":null}]}\n\n'
)


class Subject(msgspec.Struct, frozen=True):
    """What is measured; tests put something slower in its place."""

    parser: Callable[[Tokenizer], OutputParser] = lambda tokenizer: FORMAT.parser(
        OutputOptions(thinking=True, tools=TOOLS), tokenizer.detokenizer()
    )
    encode: Callable[[Chat], EncodedChat] = FORMAT.encode
    tokenizer: Callable[[Tokenizer], Tokenizer] = lambda loaded: Tokenizer(loaded.vocabulary)
    """A new one, with empty caches."""

    def started(self, loaded: Tokenizer) -> Tokenizer:
        """A new one that has seen the format's own text in another chat."""
        tokenizer = self.tokenizer(loaded)
        roles = ("system", "user", "assistant")
        tokenizer.encode_segments(self.encode(Chat(messages=[{"role": role} for role in roles])).pieces)
        return tokenizer


class Workbench:
    """One vocabulary, and what it takes to measure with it."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.tokenizer = Tokenizer.load(FORMAT, vocabulary())
        self.material = Material(self.tokenizer)
        self.tokenizer.encode_text(self.material.chat(20_000, 1, 0)[0]["content"])  # tiktoken warms up


Sample = tuple[float, float]
"""Seconds of CPU: ours, and the peer's for the same amount of work."""


class TextEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Holds when the median of our CPU time is at most `target` times the peer's in the same run."""

    name: str
    what: str
    peer: str
    target: float
    measure: Callable[[Workbench], Sample]


def run_text(
    entries: Sequence[TextEntry], repetitions: int, subject: Subject | None = None
) -> list[Measurement]:
    """Measure each entry; repetitions are outside, so that a disturbance falls on all of them."""
    bench = Workbench(subject or Subject())
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as the service does
    samples: dict[str, list[Sample]] = {entry.name: [] for entry in entries}
    for entry in entries:
        entry.measure(bench)  # a service that has not just started
    for _ in range(repetitions):
        for entry in entries:
            gc.collect()
            samples[entry.name].append(entry.measure(bench))
            print(f"[scorecard] {entry.name} {samples[entry.name][-1]}", file=sys.stderr, flush=True)
    return [_evaluate(entry, samples[entry.name]) for entry in entries]


def _evaluate(entry: TextEntry, samples: Sequence[Sample]) -> Measurement:
    ours, peers = (median(side) for side in zip(*samples, strict=True))
    ratio = ours / peers
    return Measurement(
        name=entry.name,
        value=round(ratio, 4),
        unit=UNIT,
        target=entry.target,
        holds=ratio <= entry.target,
        peer=entry.peer,
        how=(
            f"CPU, {entry.what}: {ours * 1e3:.2f} ms, {entry.peer} {peers * 1e3:.2f} ms; medians of "
            f"{len(samples)} interleaved repetitions; vocabulary {vocabulary() or 'in the package'}"
        ),
    )


# Parse and render


class Stream:
    """An answer that comes one token at a time, up to the bytes of each token's frame."""

    def __init__(self, bench: Workbench) -> None:
        self._parser = bench.subject.parser(bench.tokenizer)
        self._chat = ChatStream("chatcmpl-0123456789abcdef01234567", 1_700_000_000, "moonshotai/Kimi-K3")
        self._chat.write = _Sink().write

    def run(self, ids: Sequence[int]) -> float:
        """Seconds."""
        feed, emit, flush = self._parser.feed, self._chat.emit, self._chat.flush
        start = thread_time()
        for token in ids:
            if events := feed((token,)):
                emit(0, events)
            flush()
        return thread_time() - start


class BareLoop:
    """The least that can be done for each token: its text from a table, and a frame around it."""

    def __init__(self, bench: Workbench) -> None:
        self._texts = bench.tokenizer.detokenizer().texts

    def run(self, ids: Sequence[int]) -> float:
        """Seconds."""
        texts, write = self._texts, _Sink().write
        start = thread_time()
        for token in ids:
            write(_FRAME % encode_text(texts[token]))
        return thread_time() - start


class _Sink:
    """Where frames go, for both."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)


def _against_bare(kind: str) -> Callable[[Workbench], Sample]:
    """In turns, so that a disturbance falls on both; other words, so that none warms the caches."""

    def measure(bench: Workbench) -> Sample:
        ids, others = (STREAMS[kind](bench.material, WORDS[kind], seed) for seed in (1, 2))
        stream, bare, size = Stream(bench), BareLoop(bench), min(len(ids), len(others))
        turns = [slice(start, min(start + TURN, size)) for start in range(0, size, TURN)]
        both = [(stream.run(ids[turn]), bare.run(others[turn])) for turn in turns]
        return sum(ours for ours, _ in both), sum(peer for _, peer in both)

    return measure


def _against_short(kind: str) -> Callable[[Workbench], Sample]:
    """One long stream beside as many short ones as have its tokens, in turns."""

    def measure(bench: Workbench) -> Sample:
        shorts = [
            STREAMS[kind](bench.material, SHORT_WORDS, seed) for seed in range(LONG_WORDS // SHORT_WORDS)
        ]
        long = STREAMS[kind](bench.material, LONG_WORDS)
        turn = len(long) // len(shorts) + 1
        stream, of_long, of_short = Stream(bench), 0.0, 0.0
        for place, short in enumerate(shorts):
            of_long += stream.run(long[place * turn : (place + 1) * turn])
            of_short += Stream(bench).run(short)
        return of_long / len(long) * 1_000, of_short / sum(map(len, shorts)) * 1_000

    return measure


# Encode


def encode(bench: Workbench, tokenizer: Tokenizer, messages: Sequence[dict[str, object]]) -> float:
    """Seconds from a chat to the ids of its prompt."""
    chat = Chat(messages=as_received(messages))
    start = thread_time()
    tokenizer.encode_segments(bench.subject.encode(chat).pieces)
    return thread_time() - start


def _next_turn(tokens: int) -> Callable[[Workbench], Sample]:
    """A chat that goes on with one message, beside the same chat cold."""

    def measure(bench: Workbench) -> Sample:
        chat = bench.material.chat(tokens, MESSAGES, seed=tokens)
        new = bench.material.chat(NEW_TOKENS, 1, seed=1)[0] | {"role": "user"}
        tokenizer = bench.subject.started(bench.tokenizer)
        encode(bench, tokenizer, chat)
        warm = encode(bench, tokenizer, [*chat, new])
        cold = encode(bench, bench.subject.started(bench.tokenizer), [*chat, new])
        return warm, cold

    return measure


def _cold(bench: Workbench) -> Sample:
    """A chat that nobody has seen, beside tiktoken alone on the text of its prompt.

    Each goes first once: who comes second finds the vocabulary in the processor's caches.
    """
    chat = bench.material.chat(100_000, MESSAGES, seed=5)
    segments = FORMAT.encode(Chat(messages=chat)).segments
    text = "".join(segment.text for segment in segments if not segment.is_control)
    bare = tiktoken_alone(bench, text)
    ours = [encode(bench, bench.subject.started(bench.tokenizer), chat) for _ in range(2)]
    return sum(ours) / 2, (bare + tiktoken_alone(bench, text)) / 2


def tiktoken_alone(bench: Workbench, text: str) -> float:
    encoding = bench.tokenizer.vocabulary._encoding  # type: ignore[attr-defined]
    start = thread_time()
    encoding.encode_ordinary(text)
    return thread_time() - start


TEXT_ENTRIES = (
    *(
        TextEntry(
            name=f"parse_{kind}",
            what=f"parse and render one token at a time, {kind}, {WORDS[kind]} words",
            peer=BARE,
            target=round(1 / 0.27, 3),
            measure=_against_bare(kind),
        )
        for kind in STREAMS
    ),
    *(
        TextEntry(
            name=f"parse_{kind}_length",
            what=f"parse and render 1,000 tokens of {kind} in a stream of {LONG_WORDS} words",
            peer=f"itself at {SHORT_WORDS} words",
            target=1.2,
            measure=_against_short(kind),
        )
        for kind in STREAMS
    ),
    TextEntry(
        name="encode_100k",
        what=f"encode a chat of 100k tokens in {MESSAGES} messages and a new one of {NEW_TOKENS}",
        peer="itself cold",
        target=0.03,
        measure=_next_turn(100_000),
    ),
    TextEntry(
        name="encode_1m",
        what=f"encode a chat of 1M tokens in {MESSAGES} messages and a new one of {NEW_TOKENS}",
        peer="itself cold",
        target=0.01,
        measure=_next_turn(1_000_000),
    ),
    TextEntry(
        name="encode_cold",
        what="encode a chat of 100k tokens that nobody has seen",
        peer="tiktoken alone on the same text",
        target=1.15,
        measure=_cold,
    ),
)
