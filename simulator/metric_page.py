"""The /metrics page: an engine's counts under the names that vLLM 0.32.0 gives them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from simulator.engine import Engine
from simulator.kv.stats import Histogram
from simulator.settings import SimulatorSettings

Labels = Mapping[str, str]
Sample = tuple[Labels, float]

NOTHING = "vLLM's name for something that a simulated worker does not do: always 0."
UNUSED_COUNTERS = (
    "estimated_flops_per_gpu",
    "estimated_read_bytes_per_gpu",
    "estimated_write_bytes_per_gpu",
    "mm_cache_queries",
    "mm_cache_hits",
)
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
CONFIG = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "True",
}


class MetricPage(Collector):
    """Renders the counts of a worker's engines, in the order of their ranks."""

    def __init__(self, engines: Sequence[Engine], settings: SimulatorSettings) -> None:
        self._engines = engines
        self._settings = settings
        self._started = time.time()
        self._registry = CollectorRegistry()
        for kind in (ProcessCollector, PlatformCollector, GCCollector):
            kind(registry=self._registry)
        self._registry.register(self)

    def add(self, collector: Collector) -> None:
        """Show another collector's metrics too."""
        self._registry.register(collector)

    def render(self) -> bytes:
        """The page, in the Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._gauges()
        yield from self._counters()
        for name in self._engines[0].counters.histograms:
            yield self._histogram(name)

    def _gauges(self) -> Iterator[Metric]:
        counters = [engine.counters for engine in self._engines]
        yield self._gauge("num_requests_running", "Requests being computed.", [c.running for c in counters])
        yield self._gauge("num_requests_waiting", "Requests in the queue.", [c.waiting for c in counters])
        yield self._labelled_gauge(
            "num_requests_waiting_by_reason",
            "Requests in the queue, by what they wait for.",
            [[({"reason": "capacity"}, c.waiting), ({"reason": "deferred"}, 0)] for c in counters],
        )
        asleep: list[Sample] = [({"sleep_state": "awake"}, 1)]
        asleep += [({"sleep_state": state}, 0) for state in ("weights_offloaded", "discard_all")]
        yield self._labelled_gauge("engine_sleep_state", "Always awake.", [asleep for _ in counters])
        usage = [engine.cache.usage() for engine in self._engines]
        yield self._gauge("kv_cache_usage_perc", "Share of the KV pool in use, 0 to 1.", usage)
        config = GaugeMetricFamily("vllm:cache_config_info", "The cache's configuration.")
        for number in range(len(self._engines)):
            labels = {**CONFIG, **self._config(), "engine": str(number)}
            config.add_sample(config.name, labels, 1.0)
        yield config

    def _counters(self) -> Iterator[Metric]:
        counters = [engine.counters for engine in self._engines]
        prompt = [c.prompt_tokens for c in counters]
        cached = [c.cached_tokens for c in counters]
        external = [c.external_tokens for c in counters]
        computed = [max(p - c - e, 0) for p, c, e in zip(prompt, cached, external, strict=True)]
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", prompt)
        yield self._counter("prefix_cache_hits", "Prompt tokens found.", cached)
        yield self._counter("external_prefix_cache_queries", "Prompt tokens asked of a peer.", external)
        yield self._counter("external_prefix_cache_hits", "Prompt tokens that a peer gave.", external)
        yield self._counter("num_preemptions", "Preemptions.", [c.preemptions for c in counters])
        yield self._counter("prompt_tokens", "Prompt tokens processed.", prompt)
        yield self._counter("prompt_tokens_cached", "Prompt tokens not computed here.", cached)
        yield self._counter("generation_tokens", "Tokens generated.", [c.generation_tokens for c in counters])
        for name in UNUSED_COUNTERS:
            yield self._counter(name, NOTHING, [0 for _ in counters])
        by_source = list(zip(computed, cached, external, strict=True))
        yield self._by_label("prompt_tokens_by_source", "Prompt tokens.", "source", SOURCES, by_source)
        by_tier = [(c, 0, 0, 0, e) for c, e in zip(cached, external, strict=True)]
        yield self._by_label("prompt_tokens_cached_by_source", "Cached tokens.", "source", TIERS, by_tier)
        ended = [tuple(c.finishes.values()) for c in counters]
        reasons = tuple(counters[0].finishes)
        yield self._by_label("request_success", "Finished requests.", "finished_reason", reasons, ended)
        yield from self._of_the_server()

    def _of_the_server(self) -> Iterator[Metric]:
        """Counters without an engine."""
        model = self._settings.model
        rejections = CounterMetricFamily(
            "vllm:admission_rejections", NOTHING, labels=["model_name", "reason"]
        )
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            rejections.add_metric([model, reason], 0, created=self._started)
        yield rejections
        labels = ["mode", "model_name", "outcome", "request_type"]
        calls = CounterMetricFamily("vllm:tool_call_parser_invocations", NOTHING, labels=labels)
        for mode in ("streaming", "non_streaming"):
            for outcome in ("tool_call", "no_tool_call"):
                for request_type in ("chat_completions", "responses", "other"):
                    calls.add_metric([mode, model, outcome, request_type], 0, created=self._started)
        yield calls

    def _gauge(self, name: str, text: str, values: Sequence[float]) -> Metric:
        return self._labelled_gauge(name, text, [[({}, value)] for value in values])

    def _labelled_gauge(self, name: str, text: str, samples: Sequence[Sequence[Sample]]) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text)
        for number, of_engine in enumerate(samples):
            for labels, value in of_engine:
                family.add_sample(f"vllm:{name}", {**self._labels(number), **labels}, value)
        return family

    def _counter(self, name: str, text: str, values: Sequence[float]) -> Metric:
        return self._by_label(name, text, "", ("",), [(value,) for value in values])

    def _by_label(
        self, name: str, text: str, label: str, values: Sequence[str], counts: Sequence[Sequence[float]]
    ) -> Metric:
        """A counter with a sample for each engine and each of a label's values."""
        family = CounterMetricFamily(f"vllm:{name}", text)
        for number, of_engine in enumerate(counts):
            for value, count in zip(values, of_engine, strict=True):
                labels = self._labels(number) | ({label: value} if label else {})
                family.add_sample(f"vllm:{name}_total", labels, count)
                family.add_sample(f"vllm:{name}_created", labels, self._started)
        return family

    def _histogram(self, name: str) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", "As in vLLM, on the simulated engine's clock.")
        for number, engine in enumerate(self._engines):
            self._add_histogram(family, self._labels(number), engine.counters.histograms[name])
        return family

    def _add_histogram(self, family: Metric, labels: dict[str, str], histogram: Histogram) -> None:
        total = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            total += count
            shown = "+Inf" if bound == float("inf") else str(float(bound))
            family.add_sample(f"{family.name}_bucket", {**labels, "le": shown}, total)
        family.add_sample(f"{family.name}_count", labels, histogram.count)
        family.add_sample(f"{family.name}_sum", labels, histogram.sum)
        family.add_sample(f"{family.name}_created", labels, self._started)

    def _labels(self, number: int) -> dict[str, str]:
        return {"engine": str(number), "model_name": self._settings.model}

    def _config(self) -> dict[str, str]:
        settings = self._settings
        size, blocks = str(settings.block_size), str(settings.num_blocks)
        tokens = settings.num_blocks * settings.block_size
        states = any(group.is_state for group in settings.groups)
        return {
            "block_size": size,
            "effective_attention_block_size": size,
            "mamba_cache_mode": "align" if states else "none",
            "num_gpu_blocks": blocks,
            "num_gpu_blocks_override": blocks,
            "kv_cache_memory_bytes": str(tokens * settings.kv_slot_bytes),
            "kv_cache_size_tokens": str(tokens),
            "kv_cache_max_concurrency": str(tokens / settings.context_length),
        }
