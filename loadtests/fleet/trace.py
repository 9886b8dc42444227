"""Request traces in Mooncake's format: one JSON object a line, one hash id a block of 512 tokens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from loadtests.fleet.request import BlockNames, Request

TRACE_BLOCK = 512
"""Tokens of a block in Mooncake's traces."""


class TraceError(ValueError):
    """A file is not a trace; the message says where."""


class _Line(msgspec.Struct):
    timestamp: float
    """Milliseconds."""
    input_length: int
    output_length: int
    hash_ids: list[int]


_LINE = msgspec.json.Decoder(_Line)


def load_trace(
    path: Path,
    *,
    speed: float = 1.0,
    first: int = 0,
    last: int | None = None,
    block_tokens: int = TRACE_BLOCK,
) -> list[Request]:
    """Requests `first` to `last` of a trace, the first arriving at 0 and time running `speed` times as fast.

    The last hash id of a prompt that ends inside a block names no whole block: it is left out. The answer's
    blocks are named afresh, since a trace does not tell what it becomes. Raises TraceError.
    """
    lines = [_parsed(path, number, line) for number, line in enumerate(path.read_bytes().splitlines(), 1)]
    lines = lines[first:last]
    if not lines:
        raise TraceError(f"{path}: no requests in {first}:{'' if last is None else last}")
    names = BlockNames(block_tokens)
    known: dict[int, int] = {}
    begin = min(line.timestamp for line in lines)
    return [
        Request(
            arrival=(line.timestamp - begin) / 1000 / speed,
            prompt_tokens=line.input_length,
            output_tokens=max(line.output_length, 1),
            blocks=_blocks(line, names, known),
        )
        for line in lines
    ]


def _parsed(path: Path, number: int, line: bytes) -> _Line:
    try:
        return _LINE.decode(line)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path}:{number}: {error}") from error


def _blocks(line: _Line, names: BlockNames, known: dict[int, int]) -> tuple[int, ...]:
    size = names.block_tokens
    whole = line.input_length // size
    total = (line.input_length + max(line.output_length, 1)) // size
    prompt = []
    for key in line.hash_ids[:whole]:
        if key not in known:
            known[key] = names.fresh()
        prompt.append(known[key])
    return (*prompt, *(names.fresh() for _ in range(total - len(prompt))))


def save_trace(path: Path, requests: Iterable[Request], block_tokens: int) -> None:
    """Write requests in the same format; a partial last block gets an id that nothing else has."""
    requests = sorted(requests, key=lambda request: request.arrival)
    unique = 1 + max((max(request.blocks, default=0) for request in requests), default=0)
    with path.open("wb") as file:
        for request in requests:
            whole, rest = divmod(request.prompt_tokens, block_tokens)
            ids = list(request.blocks[:whole])
            if rest:
                ids.append(unique)
                unique += 1
            line = _Line(round(request.arrival * 1000, 3), request.prompt_tokens, request.output_tokens, ids)
            file.write(msgspec.json.encode(line) + b"\n")
