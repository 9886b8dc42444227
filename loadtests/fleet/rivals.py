"""Other routers' policies, re-implemented from their published formulas."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from loadtests.fleet.view import Flight, Prompt, WorkerView, lowest


class _Stateless:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def placed(self, flight: Flight, now: float) -> None:
        pass

    def first_token(self, flight: Flight, now: float) -> None:
        pass


class Dynamo(_Stateless):
    """Dynamo 1.6: blocks to prefill beyond what is cached, plus distinct blocks that would decode."""

    def __init__(self, seed: int, prefill_load_scale: float = 1.0, credit: float = 1.0) -> None:
        super().__init__(seed)
        self._scale = prefill_load_scale
        self._credit = credit

    def pick(self, workers: Sequence[WorkerView], prompt: Prompt, cached: Sequence[int], now: float) -> int:
        return lowest(
            [self.cost(worker, prompt, held) for worker, held in zip(workers, cached, strict=True)],
            self._random,
        )

    def cost(self, worker: WorkerView, prompt: Prompt, cached: int) -> float:
        size = prompt.block_tokens
        prefill = (worker.queued_tokens + prompt.tokens - self._credit * cached) / size
        new = sum(1 for block in prompt.blocks if block not in worker.active)
        return self._scale * max(prefill, 0.0) + worker.active_blocks + new


class CacheAware(_Stateless):
    """SGLang's router: the best match if it is good enough and nobody is far behind, else by load."""

    def __init__(self, seed: int, *, miss_to_smallest_tree: bool) -> None:
        """On a miss the released router takes the smallest tree; a later change takes the least load."""
        super().__init__(seed)
        self._to_smallest_tree = miss_to_smallest_tree

    def pick(self, workers: Sequence[WorkerView], prompt: Prompt, cached: Sequence[int], now: float) -> int:
        loads = [worker.sequences for worker in workers]
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            return lowest(loads, self._random)
        if max(cached) > 0.3 * prompt.tokens:
            return lowest([-held for held in cached], self._random)
        return lowest(
            [len(worker.announced) for worker in workers] if self._to_smallest_tree else loads, self._random
        )


class Weighted(_Stateless):
    """llm-d: a weighted sum of scores in [0, 1] for prefix, queue and KV in use; the highest wins."""

    def __init__(self, seed: int, prefix: float = 2.0, queue: float = 1.0, kv: float = 1.0) -> None:
        super().__init__(seed)
        self._prefix, self._queue, self._kv = prefix, queue, kv

    def pick(self, workers: Sequence[WorkerView], prompt: Prompt, cached: Sequence[int], now: float) -> int:
        longest = max(worker.queued_tokens for worker in workers) or 1
        fullest = max(worker.active_blocks for worker in workers) or 1
        return lowest(
            [
                -self._prefix * held / prompt.tokens
                + self._queue * worker.queued_tokens / longest
                + self._kv * worker.active_blocks / fullest
                for worker, held in zip(workers, cached, strict=True)
            ],
            self._random,
        )


class Multiplicative(_Stateless):
    """vllm-router's kv_aware: prompt tokens to compute, queued ones included, times requests in flight."""

    def pick(self, workers: Sequence[WorkerView], prompt: Prompt, cached: Sequence[int], now: float) -> int:
        return lowest(
            [
                (worker.queued_tokens + prompt.tokens - held) * (worker.sequences + 1)
                for worker, held in zip(workers, cached, strict=True)
            ],
            self._random,
        )
