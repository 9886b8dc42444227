"""One engine's memory: writes what its steps compute, and reads it where an answer begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.kv.arena import Arena
from simulator.kv.context import Context

if TYPE_CHECKING:
    from simulator.scheduler import Batch, Job


class Memory:
    """The arena, and how often it did not hold what a prompt needs."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.violations = 0
        """Blocks, counted for each answer that began with them."""

    def write(self, batch: Batch) -> None:
        """Write a planned step, before anything else can happen to its sequences.

        Later jobs of the step may go on from blocks of earlier ones. Output is written when it fills a block.
        """
        for share in batch.shares:
            job, sequence = share.job, share.job.sequence
            if job.context is None:
                job.context = Context(self.arena, sequence.tables, sequence.computed)
            upto = sequence.computed + share.tokens
            if not job.started or job.context.crosses(upto):
                job.context.compute(sequence.token_ids, upto)

    def read(self, batch: Batch) -> None:
        """Where an answer begins with this step: count what is wrong, let what is there decide the words."""
        for share in batch.shares:
            if share.speaks and not share.job.started and not share.job.gone:
                self._begin(share.job)

    def _begin(self, job: Job) -> None:
        assert job.context is not None
        self.violations += job.context.wrong_blocks()
        if job.generation.rewrite is not None:
            job.generation.plan = job.generation.rewrite(job.context.digest(job.generation.answer_start))
