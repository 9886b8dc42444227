"""Answers of the pair, streamed by the gateway, beside those of a plain worker that is asked directly.

Every prompt is new to every worker. What shows that such an equality means something: with 64 tokens of the
prompt changed, a quarter in, the plain worker says something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtests.gpu.client import Answer, Client, body, direct, random_ids
from loadtests.gpu.front import Front
from loadtests.gpu.record import Record
from loadtests.gpu.shapes import spelled
from loadtests.gpu.workers import Worker

CHANGED_TOKENS = 64


def compare_answers(
    front: Front,
    workers: Mapping[str, Worker],
    sizes: Sequence[int],
    each: int,
    record: Record,
    decoder: str,
    seed: int,
) -> None:
    """`each` prompts of every size; `decoder` is the decode worker, the prompts belong to `seed`."""
    pair, plain = front.client(), Client(workers["a0"].url)
    decode = workers[decoder]
    for size in sizes:
        found: dict[str, int] = dict.fromkeys(("equal", "again_equal", "changed_differs", "usage_right"), 0)
        differences = []
        moved = decode.metrics().get("vllm:nixl_bytes_transferred_sum", 0.0)
        for number in range(each):
            prompt = random_ids(size, seed=seed + size * 100 + number)
            alone = plain.post(direct(prompt, logprobs=2))
            both = pair.post(body(prompt))
            found["equal"] += both.text == spelled(alone.ids)
            found["usage_right"] += both.prompt_tokens == size
            if both.error or both.text != spelled(alone.ids):
                differences.append(both.error or _difference(alone, both))
            found["again_equal"] += plain.post(direct(prompt)).ids == alone.ids
            start = size // 4
            prompt[start : start + CHANGED_TOKENS] = random_ids(CHANGED_TOKENS, seed=number)
            found["changed_differs"] += plain.post(direct(prompt)).ids != alone.ids
        moved = decode.metrics().get("vllm:nixl_bytes_transferred_sum", 0.0) - moved
        record(
            "answers",
            decode_worker=decoder,
            prompt_tokens=size,
            prompts=each,
            **found,
            mb_moved_each=round(moved / each / 1e6, 1),
            differences=differences,
        )


def _difference(alone: Answer, both: Answer) -> str:
    """Where two answers part, and how sure the plain worker was of its token there."""
    words, said = spelled(alone.ids).split(), both.text.split()
    place = next((n for n, (a, b) in enumerate(zip(words, said, strict=False)) if a != b), len(said))
    best = sorted(alone.logprobs[place].values(), reverse=True) if place < len(alone.logprobs) else []
    lead = f", ahead by {best[0] - best[1]:.3f}" if len(best) > 1 else ""
    return f"token {place} of {len(said)}{lead}"
