"""What an engine counts about its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.kv.stats import Histogram

if TYPE_CHECKING:
    from simulator.generation import Step
    from simulator.scheduler import Batch, Job

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = tuple(float(size) for size in (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


class Counters:
    """What happened since the start. A request whose client left counts nowhere, as in vLLM."""

    def __init__(self, context_length: int) -> None:
        """`context_length` bounds the buckets of token counts."""
        self.running = 0
        self.waiting = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.external_tokens = 0
        """Prompt tokens whose KV came from a peer."""
        self.generation_tokens = 0
        self.finishes = dict.fromkeys(FINISH_REASONS, 0)
        self.preemptions = 0
        sizes = _one_two_five(context_length)
        self.histograms = {
            "request_prompt_tokens": Histogram(sizes),
            "request_generation_tokens": Histogram(sizes),
            "iteration_tokens_total": Histogram(STEP_TOKENS),
            "request_max_num_generation_tokens": Histogram(sizes),
            "request_params_n": Histogram(CHOICES),
            "request_params_max_tokens": Histogram(sizes),
            "time_to_first_token_seconds": Histogram(FIRST_TOKEN),
            "inter_token_latency_seconds": Histogram(BETWEEN_TOKENS),
            "request_time_per_output_token_seconds": Histogram(BETWEEN_TOKENS),
            "e2e_request_latency_seconds": Histogram(REQUEST),
            "request_queue_time_seconds": Histogram(REQUEST),
            "request_inference_time_seconds": Histogram(REQUEST),
            "request_prefill_time_seconds": Histogram(REQUEST),
            "request_decode_time_seconds": Histogram(REQUEST),
            "request_num_preemptions": Histogram(PREEMPTIONS),
            "request_prefill_kv_computed_tokens": Histogram(sizes),
        }

    def computed(self, batch: Batch) -> None:
        """A step is done."""
        self.preemptions += len(batch.preempted)
        if batch.shares:
            self._observe("iteration_tokens_total", sum(share.tokens for share in batch.shares))

    def stepped(self, job: Job, step: Step, now: float) -> None:
        """A job's output came out at `now`, seconds on the loop's clock."""
        if step.start == 0:
            self.prompt_tokens += len(step.generation.token_ids)
            self.cached_tokens += job.hit_tokens
            self._observe("time_to_first_token_seconds", now - job.arrived)
            job.first_said = now
        elif step.ids:
            self._observe("inter_token_latency_seconds", now - job.last_said)
        job.last_said = now
        self.generation_tokens += len(step.ids)
        if step.last:
            self._ended(job, now)

    def _ended(self, job: Job, now: float) -> None:
        generation = job.generation
        said = len(generation.plan.ids)
        self.finishes[generation.plan.finish_reason] += 1
        prompt = len(generation.token_ids)
        values = {
            "request_prompt_tokens": prompt,
            "request_generation_tokens": said,
            "request_max_num_generation_tokens": said,
            "request_params_n": generation.siblings,
            "request_params_max_tokens": generation.max_tokens,
            "e2e_request_latency_seconds": now - job.arrived,
            "request_queue_time_seconds": job.admitted - job.arrived,
            "request_inference_time_seconds": now - job.admitted,
            "request_prefill_time_seconds": job.first_said - job.admitted,
            "request_decode_time_seconds": now - job.first_said,
            "request_time_per_output_token_seconds": (now - job.first_said) / max(said - 1, 1),
            "request_num_preemptions": job.preemptions,
            "request_prefill_kv_computed_tokens": prompt - generation.cached_tokens,
        }
        for name, value in values.items():
            self._observe(name, value)

    def _observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)


def _one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to `largest`."""
    steps = (digit * 10**power for power in range(len(str(largest))) for digit in (1, 2, 5))
    return tuple(float(step) for step in steps if step <= largest)
