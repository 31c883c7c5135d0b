"""Data-parallel trainings that are made up: workers that compute, meet in buckets, and wait for one another.

A simulation, step by step and bucket by bucket, of any number of workers: what is predicted for more of them can be
compared with what they then take. It shares no code with what predicts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gscalar.model.timeline import ACCOUNT_NAMES, Collectives, Floats, Rank, Spans, StepTimeline

UPDATE_S = 0.004


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers that compute `compute_s` in a step, with a relative deviation of `scatter`, joined by one link."""

    compute_s: float = 0.1
    scatter: float = 0.05
    common: float = 0.0  # the scatter that all workers of a step share
    slow: tuple[int, ...] = ()  # workers that take half as long again; every 8th after them too
    bucket_bytes: tuple[float, ...] = (4e6, 8e6, 2e6)
    backward: float = 2 / 3
    alpha_s: float = 30e-6
    beta_bytes_per_s: float = 4e9
    seed: int = 0

    def compute_times_s(self, num_workers: int, num_steps: int) -> Floats:
        """Return what each worker computes in each step, `(num_workers, num_steps)`."""
        draw = np.random.default_rng(self.seed + num_workers)
        own = draw.gamma(4.0, 1.0, (num_workers, num_steps)) / 2 - 2  # mean 0, deviation 1, a tail upwards
        shared = draw.standard_normal(num_steps)
        slow = np.where(np.isin(np.arange(num_workers) % 8, self.slow), 1.5, 1.0)
        return self.compute_s * slow[:, None] * (1 + self.scatter * own + self.common * shared)

    def ring_s(self, num_bytes: float, num_workers: int) -> float:
        """Return how long a bucket takes once the last worker has come: each hop passes on a part of it."""
        if num_workers == 1:
            return 0.0
        hops = 2 * (num_workers - 1)
        return hops * (self.alpha_s + num_bytes / num_workers / self.beta_bytes_per_s)

    def train(self, num_workers: int, num_steps: int) -> StepTimeline:
        """Return the timeline of so many steps."""
        computes = self.compute_times_s(num_workers, num_steps)
        num = len(self.bucket_bytes)
        ready = np.stack([computes * (1 - self.backward * (1 - (at + 1) / num)) for at in range(num)], axis=2)
        start, end = np.zeros_like(ready), np.zeros_like(ready)
        free = np.zeros(num_steps)
        for at, num_bytes in enumerate(self.bucket_bytes):
            free = np.maximum(ready[:, :, at].max(axis=0), free) + self.ring_s(num_bytes, num_workers)
            before = end[:, :, at - 1] if at else 0.0
            start[:, :, at], end[:, :, at] = np.maximum(ready[:, :, at], before), free
        meet_s = np.maximum(end[:, :, -1], computes)
        found = timeline_of(computes, meet_s - computes)
        if num_workers == 1:
            return found
        begin_s = found.begin_s[:, :, None]
        collectives = Collectives(
            kind=("all_reduce",) * num,
            group=np.zeros(num, np.int64),
            num_bytes=np.array(self.bucket_bytes),
            ready_s=begin_s + ready,
            start_s=begin_s + start,
            end_s=begin_s + end,
        )
        return replace(found, collectives=collectives)

    def mean_step_s(self, num_workers: int, num_steps: int = 400) -> float:
        """Return what a step takes on average."""
        return float(self.train(num_workers, num_steps).step_s.mean())


def timeline_of(
    compute_s: Floats,
    exposed_s: Floats,
    *,
    world: int = 0,
    work: Floats | None = None,
    stages: int = 1,
) -> StepTimeline:
    """Return a timeline of steps that compute, wait and update, `(num_ranks, num_steps)` each."""
    num_ranks, num_steps = compute_s.shape
    accounts = np.zeros((num_ranks, num_steps, len(ACCOUNT_NAMES)))
    accounts[:, :, ACCOUNT_NAMES.index("compute")] = compute_s
    accounts[:, :, ACCOUNT_NAMES.index("exposed_communication")] = exposed_s
    accounts[:, :, ACCOUNT_NAMES.index("optimizer")] = UPDATE_S
    end_s = np.cumsum(accounts.sum(axis=2), axis=1)
    return StepTimeline(
        source="record",
        name="made up",
        ranks=tuple(Rank(rank=at, stage=at % stages) for at in range(num_ranks)),
        steps=np.arange(1, num_steps + 1),
        begin_s=end_s - accounts.sum(axis=2),
        end_s=end_s,
        accounts=accounts,
        spans=Spans.of(0),
        names=(),
        world=world or num_ranks,
        work=work,
    )
