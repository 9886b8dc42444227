"""Runs inside the engine's own environment: does its grammar library accept these answers?

Reads {"model": path, "asked": [[structural tag, token ids], ...]} and writes a list of booleans.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import xgrammar

BASE, SIZE, END = 163_584, 163_840, 163_586
CONTROLS = {163586: "<|end_of_msg|>", 163587: "<|open|>", 163588: "<|close|>", 163589: "<|sep|>"}


def main() -> None:
    task = json.load(sys.stdin)
    vocabulary = [b""] * SIZE
    for line in Path(task["model"]).read_bytes().splitlines():
        piece, rank = line.split()
        vocabulary[int(rank)] = base64.b64decode(piece)
    for slot in range(BASE, SIZE):
        vocabulary[slot] = CONTROLS.get(slot, f"<|reserved_token_{slot}|>").encode()
    info = xgrammar.TokenizerInfo(vocabulary, vocab_size=SIZE, stop_token_ids=[END])
    compiler = xgrammar.GrammarCompiler(info)
    json.dump([accepts(compiler, tag, ids) for tag, ids in task["asked"]], sys.stdout)


def accepts(compiler: xgrammar.GrammarCompiler, tag: object, ids: list[int]) -> bool:
    matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(json.dumps(tag)))
    return all(matcher.accept_token(token) for token in ids) and matcher.accept_token(END)


if __name__ == "__main__":
    main()
