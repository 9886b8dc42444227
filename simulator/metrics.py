"""The worker's counters, and vLLM's names for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine import Engine
    from simulator.generation import Step
    from simulator.scheduler import Job
    from simulator.settings import SimulatorSettings

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

Sample = tuple[dict[str, str], float]


class Counters:
    """What happened since the start. An aborted request counts nowhere, as in vLLM."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.external_tokens = 0
        """Prompt tokens whose KV came from a peer."""
        self.generation_tokens = 0
        self.finishes = dict.fromkeys(FINISH_REASONS, 0)
        self.preemptions = 0

    def stepped(self, job: Job, step: Step, now: float) -> None:
        """Output came out at `now`, seconds on the loop's clock."""
        generation = step.generation
        if step.start == 0:
            self.prompt_tokens += len(generation.token_ids)
            self.cached_tokens += job.hit_tokens
        self.generation_tokens += len(step.ids)
        if step.last:
            self.finishes[generation.plan.finish_reason] += 1


def render(engines: Sequence[Engine], settings: SimulatorSettings) -> str:
    """The /metrics page, in the Prometheus text format; `engines` in the order of their ranks."""
    lines: list[str] = []
    for families in zip(*(_families(engine, settings) for engine in engines), strict=True):
        name, kind, text, _ = families[0]
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for number, (*_, samples) in enumerate(families):
            base = {"engine": str(number), "model_name": settings.model}
            lines += [_line(name, base | labels, value) for labels, value in samples]
    return "\n".join(lines) + "\n"


def _families(engine: Engine, settings: SimulatorSettings) -> Iterator[tuple[str, str, str, list[Sample]]]:
    counters, cache = engine.counters, engine.cache

    def plain(name: str, kind: str, text: str, value: float) -> tuple[str, str, str, list[Sample]]:
        return f"vllm:{name}", kind, text, [({}, value)]

    computed = max(counters.prompt_tokens - counters.cached_tokens - counters.external_tokens, 0)
    yield plain("num_requests_running", "gauge", "Requests being computed.", counters.running)
    yield plain("num_requests_waiting", "gauge", "Requests not yet scheduled.", counters.waiting)
    yield plain("kv_cache_usage_perc", "gauge", "Share of the KV pool in use, 0 to 1.", cache.usage())
    yield plain("prefix_cache_queries_total", "counter", "Prompt tokens looked up.", counters.prompt_tokens)
    yield plain("prefix_cache_hits_total", "counter", "Prompt tokens found.", counters.cached_tokens)
    yield plain("num_preemptions_total", "counter", "Preemptions.", counters.preemptions)
    yield plain("prompt_tokens_total", "counter", "Prompt tokens processed.", counters.prompt_tokens)
    by_source: list[Sample] = [
        ({"source": "local_compute"}, computed),
        ({"source": "local_cache_hit"}, counters.cached_tokens),
        ({"source": "external_kv_transfer"}, counters.external_tokens),
    ]
    yield "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by source.", by_source
    yield plain("prompt_tokens_cached_total", "counter", "Cached prompt tokens.", counters.cached_tokens)
    yield plain("generation_tokens_total", "counter", "Tokens generated.", counters.generation_tokens)
    reasons: list[Sample] = [({"finished_reason": key}, value) for key, value in counters.finishes.items()]
    yield "vllm:request_success_total", "counter", "Finished requests by reason.", reasons
    config = {
        "block_size": str(settings.block_size),
        "enable_prefix_caching": "True",
        "num_gpu_blocks": str(settings.num_blocks),
        "kv_cache_size_tokens": str(settings.num_blocks * settings.block_size),
        "prefix_caching_hash_algo": "sha256",
    }
    yield "vllm:cache_config_info", "gauge", "The cache's configuration.", [(config, 1)]


def _line(name: str, labels: dict[str, str], value: float) -> str:
    joined = ",".join(f'{key}="{_escape(labels[key])}"' for key in sorted(labels))
    return f"{name}{{{joined}}} {float(value)}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
