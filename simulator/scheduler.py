"""Steps of one engine: which sequences compute how many tokens next, in vLLM's order.

A step gives every running sequence its next token or piece of prompt, oldest first, and what is left of its
budget to those that wait. A running sequence that finds no block takes it from the youngest one, which goes
back to the head of the queue and computes everything again. Blocks are announced when a step is planned.

Pure: the caller keeps the time, between `plan` and `finish`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from simulator.cache import KVCache, KVSequence
from simulator.generation import Generation, Step
from simulator.kv.context import Context


class Job:
    """A generation on its way."""

    def __init__(self, generation: Generation, cache: KVCache, now: float) -> None:
        self.generation = generation
        leg = generation.leg
        token_ids, digests = generation.token_ids, generation.digests
        if leg is not None and leg.keeps and cache.has_states and len(token_ids) > 1:
            # The last token is the reader's: a state with it in could not be gone back from.
            token_ids = token_ids[:-1]
            digests = digests[: len(token_ids) // cache.block_size]
        self.sequence = KVSequence(cache, token_ids, digests, generation.salt)
        self.context: Context | None = None
        """What the sequence has in memory, while it has blocks."""
        self.fetched = leg is None or leg.remote is None
        """Whether the prompt's blocks need not come from a peer, or no longer."""
        self.arrived = self.admitted = self.first_said = self.last_said = now
        """When it came, got its first blocks, and said something for the first and the last time."""
        self.due = now + (generation.step_seconds or 0.0)
        """When a sequence with a pace of its own may take its next step."""
        self.hit_tokens = 0
        """Prompt tokens that were in this cache, whatever the answer's usage is to say."""
        self.given_tokens = 0
        """Prompt tokens that a peer gave."""
        self.gone = False
        self.preemptions = 0
        self._backoff = int(cache.has_states)
        self._said = 0
        self._known = 0

    @property
    def paced(self) -> bool:
        """Whether the time of its steps is its own, not the timing model's."""
        return self.generation.step_seconds is not None

    @property
    def started(self) -> bool:
        """Whether output has come out."""
        return self._said > 0

    @property
    def said(self) -> int:
        """Output tokens that have come out."""
        return self._said

    @property
    def settled(self) -> int:
        """Tokens of the prompt and of the output so far."""
        return self.sequence.prompt_tokens + self._said

    @property
    def remote_tokens(self) -> int:
        """How much of the prompt a peer gives: a state with the last token in could not be gone back from."""
        return self.sequence.prompt_tokens - self._backoff

    def draft(self) -> int:
        """Append all but the last token of the coming step, to be computed in it; how many there are."""
        if not self.started and self.generation.rewrite is not None:
            return 0
        ahead = self._said + len(self._next()) - 1
        self.sequence.extend(self.generation.plan.ids[self._known : ahead])
        self._known = max(self._known, ahead)
        return self._known - self._said

    def say(self) -> Step:
        """The tokens that a step gave."""
        ids, start = self._next(), self._said
        self.sequence.extend(ids[self._known - start :])
        self._said = self._known = start + len(ids)
        return Step(self.generation, start, ids, self._said == len(self.generation.plan.ids))

    def _next(self) -> list[int]:
        return self.generation.plan.ids[self._said : self._said + self.generation.tokens_per_step]


class Share(msgspec.Struct, frozen=True):
    """A job's part of a step."""

    job: Job
    tokens: int
    speaks: bool
    """Whether it reaches the end of what is known, so that output comes out."""


class Batch:
    """One planned step."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.shares: list[Share] = []
        self.preempted: list[Job] = []
        self.fetches: list[Job] = []
        """Jobs that have room now for what a peer will give."""

    def add(self, share: Share) -> None:
        """Take a job's share."""
        self.shares.append(share)
        self.budget -= share.tokens


class Scheduler:
    """Owns the queues of one cache."""

    def __init__(self, cache: KVCache, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.fetching: list[Job] = []
        """Jobs whose blocks are being read from a peer: they have room and cannot be preempted."""
        self._ready: deque[Job] = deque()
        self._cache = cache
        self._max_num_seqs = max_num_seqs
        self._budget = max_num_batched_tokens

    @property
    def busy(self) -> bool:
        """Whether any job can go on without a peer."""
        return bool(self.running or self.waiting or self._ready)

    @property
    def queued(self) -> int:
        """Jobs that do not run yet, those that wait for a peer among them."""
        return len(self.waiting) + len(self.fetching) + len(self._ready)

    def add(self, job: Job) -> None:
        """Queue a job."""
        self.waiting.append(job)

    def drop(self, job: Job) -> None:
        """Forget a job that ended or whose client left; harmless the second time."""
        if job.gone:
            return
        job.gone = True
        if job in self.fetching:
            return  # a peer's bytes are still coming: `arrived` frees the blocks
        queues: list[list[Job] | deque[Job]] = [self.running, self.waiting, self._ready]
        next(queue for queue in queues if job in queue).remove(job)
        job.sequence.free()

    def arrived(self, job: Job, *, complete: bool) -> None:
        """What a peer had to give is here; or not all of it, and the job starts anew without it."""
        self.fetching.remove(job)
        job.fetched = True
        if job.gone:
            job.sequence.free()
        elif complete:
            job.given_tokens = max(job.remote_tokens - job.hit_tokens, 0)
            job.sequence.hold(job.remote_tokens)
            job.sequence.computed = min(job.remote_tokens, job.settled - 1)
            self._ready.append(job)
        else:
            job.context = None
            job.sequence.free()
            self.waiting.appendleft(job)

    def next_due(self, now: float) -> float | None:
        """When the next of the jobs with a pace of their own may go on; None when none waits for its time."""
        jobs = (*self.running, *self.waiting)
        return min((job.due for job in jobs if job.paced and job.due > now), default=None)

    def plan(self, now: float) -> Batch:
        """The next step; without shares when nothing can run now."""
        self._cache.new_step()
        batch = Batch(self._budget)
        while self._ready and len(self.running) < self._max_num_seqs:
            self._run(self._ready.popleft(), now)
        self._continue_running(batch, now)
        if not batch.preempted:
            self._admit_waiting(batch, now)
        return batch

    def finish(self, batch: Batch) -> list[tuple[Job, Step]]:
        """The step is computed: its output. Jobs that ended are gone."""
        said = []
        for share in batch.shares:
            job = share.job
            if job.gone:
                continue
            job.sequence.computed += share.tokens
            if share.speaks:
                said.append((job, self._speak(job)))
        return said

    def reset(self, *, preempt: bool) -> bool:
        """Forget every prefix; False while blocks are used. `preempt` sends all running jobs back first.

        Must not come between `plan` and `finish`.
        """
        while preempt and self.running:
            self._preempt(self.running.pop())
        return self._cache.clear()

    def _speak(self, job: Job) -> Step:
        if not job.started:
            kept = min(job.sequence.kept_tokens, job.sequence.prompt_tokens)
            job.generation.created_tokens = max(kept - job.hit_tokens - job.given_tokens, 0)
        step = job.say()
        job.due += job.generation.step_seconds or 0.0
        if step.last and job.generation.leg is not None and job.generation.leg.keeps:
            job.gone = True
            self.running.remove(job)
        elif step.last:
            self.drop(job)
        return step

    def _continue_running(self, batch: Batch, now: float) -> None:
        index = 0
        while index < len(self.running) and batch.budget > 0:
            job = self.running[index]
            index += 1
            if job.paced and job.due > now:
                continue
            share = self._share(job, job.sequence.computed, job.sequence.junction, batch.budget)
            if share.tokens == 0:
                continue
            if not self._make_room(job, share.tokens, batch):
                return
            batch.add(share)

    def _make_room(self, job: Job, tokens: int, batch: Batch) -> bool:
        while not job.sequence.advance(tokens):
            youngest = self.running.pop()
            self._preempt(youngest)
            batch.preempted.append(youngest)
            if youngest is job:
                return False
        return True

    def _admit_waiting(self, batch: Batch, now: float) -> None:
        early: list[Job] = []
        while self.waiting and batch.budget > 0 and len(self.running) < self._max_num_seqs:
            job = self.waiting[0]
            if job.paced and job.due > now:
                early.append(self.waiting.popleft())
                continue
            if not job.fetched:
                if not self._begin_fetch(job):
                    break
                batch.fetches.append(self.waiting.popleft())
                continue
            share = self._admit(job, batch.budget)
            if share is None:
                break
            self._run(self.waiting.popleft(), now)
            batch.add(share)
        self.waiting.extendleft(reversed(early))

    def _run(self, job: Job, now: float) -> None:
        if not job.preemptions:
            job.admitted = now
        self.running.append(job)

    def _admit(self, job: Job, budget: int) -> Share | None:
        sequence, size = job.sequence, self._cache.block_size
        hit = sequence.look_up(job.settled)
        share = self._share(job, hit.depth * size, hit.junction * size, budget)
        if share.tokens == 0 or not sequence.admit(hit, share.tokens):
            return None
        if not job.started and not job.preemptions:
            job.hit_tokens = job.generation.cached_tokens = hit.depth * size
        return share

    def _begin_fetch(self, job: Job) -> bool:
        """Take blocks for what a peer will give; False without room."""
        hit = job.sequence.look_up(job.settled)
        new = max(job.remote_tokens - hit.depth * self._cache.block_size, 0)
        if not job.sequence.admit(hit, new, hold=False):
            return False
        self.fetching.append(job)
        job.hit_tokens = job.generation.cached_tokens = hit.depth * self._cache.block_size
        return True

    def _share(self, job: Job, start: int, junction: int, budget: int) -> Share:
        """What a job may compute from `start` on; no tokens when no fitting piece is that small."""
        missing = job.settled - start
        tokens = min(missing, budget)
        if self._cache.has_states:
            tokens = self._cut(job, start, tokens, junction)
        if tokens < missing:
            return Share(job, tokens, False)
        return Share(job, tokens + job.draft(), True)

    def _cut(self, job: Job, start: int, tokens: int, junction: int) -> int:
        """Make a piece of prompt end where a state is to be kept: what a step leaves is its last state."""
        size, known = self._cache.block_size, job.settled
        prompt_end = max(job.sequence.prompt_tokens, known - 1)
        if start >= prompt_end:
            return tokens
        end = start + tokens
        if end < prompt_end and (end // size * size > start or size <= self._budget):
            end = end // size * size
        stops = [(known - 1) // size * size]
        if start % size:
            stops.append((start // size + 1) * size)
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        return max(min((stop for stop in stops if start < stop < end), default=end) - start, 0)

    def _preempt(self, job: Job) -> None:
        job.context = None
        job.sequence.free()
        job.preemptions += 1
        self.waiting.appendleft(job)


def prefill_tokens(shares: Sequence[Share]) -> int:
    """Tokens of the shares that are pieces of prompt, at the timing model's expense."""
    return sum(share.tokens for share in shares if not share.job.paced and _prefills(share))


def decodes(shares: Sequence[Share]) -> int:
    """Shares that go on with an output, at the timing model's expense."""
    return sum(not share.job.paced and not _prefills(share) for share in shares)


def _prefills(share: Share) -> bool:
    return share.job.sequence.computed < share.job.sequence.prompt_tokens or not share.job.started
