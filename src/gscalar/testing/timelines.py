"""Timelines of trainings in data parallel that were simulated, so that the truth about them is known.

`draw_data_parallel` draws how long each piece of each rank's step takes; `simulate_data_parallel` lets the ranks
work through them, one event after the other, and writes down what the record of such a training says. What a fix is
really worth comes from a second simulation of the same pieces with that fix made (`dataclasses.replace`): it is the
oracle of every prediction, so nothing here comes from `gscalar.prediction`.

A step: the script's own work, waiting for the batch, its copy, garbage collection, forward and backward,
the exchange of the gradients with all ranks, the optimizer, the checkpoint. A rank that loads by itself waits for the
whole of the loader's work; others find what their loaders, which work ahead, have ready. Accounts sum to the
step, and `exposed_communication` is waiting for other ranks and transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from gscalar.model.timeline import (
    ACCOUNT_NAMES,
    Activity,
    Collectives,
    Floats,
    Lane,
    Loading,
    Rank,
    Signal,
    Spans,
    StepTimeline,
)

BACKWARD_SHARE: Final = 2 / 3  # of forward and backward
NAMES: Final = (
    "host_gap", "data_wait", "h2d", "gc", "forward", "backward", "communication", "optimizer", "checkpoint",
    "all_reduce",
)  # fmt: skip
_ACTIVITIES: Final = (
    Activity.HOST, Activity.DATA_WAIT, Activity.H2D, Activity.GC, Activity.FORWARD, Activity.BACKWARD,
    Activity.COMMUNICATION, Activity.OPTIMIZER, Activity.CHECKPOINT, Activity.REDUCE_GRADIENTS,
)  # fmt: skip
_ACCOUNT_OF: Final = {"forward": "compute", "backward": "compute", "communication": "exposed_communication"}


class Options(TypedDict, total=False):
    """What a training in data parallel is like. Seconds that are not one number broadcast to `(ranks, steps)`."""

    ranks: int  # 8
    steps: int  # 40
    compute_s: float  # 0.1: forward and backward of a rank that is not slow, at the mean work
    jitter: float  # 0.01: standard deviation of each compute, as a share of it
    slow: dict[int, float]  # by rank: how many times as long a unit of work takes it
    work: npt.ArrayLike | None  # units that each rank has to do, (ranks, steps); None: all the same, not known
    transfer_s: npt.ArrayLike  # 0.02: of all gradients of a step, (steps,)
    latency_s: float  # 0: what each exchange takes beside its share of that
    buckets: int  # 1: exchanges that the gradients are cut into
    overlap: bool  # False: whether an exchange begins as soon as its gradients are there
    data_wait_s: npt.ArrayLike  # 0.001; where there is a loader, what a batch that is ready takes
    queue_empty: npt.ArrayLike  # NaN; as the record has it, where there is no loader
    loader_work_s: npt.ArrayLike | None  # what making one batch takes one loader; None: no loader is simulated
    loaders: int  # 0: the training's own process loads
    h2d_s: npt.ArrayLike  # 0.0005
    gc_s: npt.ArrayLike  # 0
    host_gap_s: npt.ArrayLike  # 0.001
    optimizer_s: npt.ArrayLike  # 0.005
    checkpoint_s: npt.ArrayLike  # 0
    gradient_bytes: float  # 100e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """How long the pieces of each rank's step take, `(num_ranks, num_steps)` each, in seconds."""

    host_gap_s: Floats
    data_wait_s: Floats
    h2d_s: Floats
    gc_s: Floats
    compute_s: Floats
    optimizer_s: Floats
    checkpoint_s: Floats
    transfer_s: Floats  # of all gradients, (num_steps,)
    latency_s: float
    buckets: int
    overlap: bool
    queue_empty: Floats
    loader_work_s: Floats | None
    loaders: int
    work: Floats | None
    gradient_bytes: float


def periodic(steps: int, every: int, seconds: float, *, first: int = 0) -> Floats:
    """Return so many seconds in every so-manieth step, from the first one on, else 0, `(steps,)`."""
    at = np.arange(steps)
    return np.where((at >= first) & ((at - first) % every == 0), seconds, 0.0)


def data_parallel_timeline(rng: np.random.Generator, **options: Unpack[Options]) -> StepTimeline:
    """Return the timeline of a simulated training in data parallel, as the reader of records would."""
    return simulate_data_parallel(draw_data_parallel(rng, **options))


def draw_data_parallel(rng: np.random.Generator, **options: Unpack[Options]) -> Pieces:
    """Return the pieces of the steps. What is drawn depends on nothing but the number of ranks and steps."""
    shape = options.get("ranks", 8), options.get("steps", 40)

    def spread(seconds: npt.ArrayLike) -> Floats:
        return np.broadcast_to(np.asarray(seconds, np.float64), shape).copy()

    factor = np.maximum(1 + options.get("jitter", 0.01) * rng.standard_normal(shape), 0.1)
    for rank, slower in options.get("slow", {}).items():
        factor[rank] *= slower
    given = options.get("work")
    work = None if given is None else spread(given)
    if work is not None:
        factor *= work / work.mean()
    loading = options.get("loader_work_s")
    return Pieces(
        host_gap_s=spread(options.get("host_gap_s", 0.001)),
        data_wait_s=spread(options.get("data_wait_s", 0.001)),
        h2d_s=spread(options.get("h2d_s", 0.0005)),
        gc_s=spread(options.get("gc_s", 0.0)),
        compute_s=options.get("compute_s", 0.1) * factor,
        optimizer_s=spread(options.get("optimizer_s", 0.005)),
        checkpoint_s=spread(options.get("checkpoint_s", 0.0)),
        transfer_s=np.broadcast_to(np.asarray(options.get("transfer_s", 0.02), np.float64), shape[1:]).copy(),
        latency_s=options.get("latency_s", 0.0),
        buckets=options.get("buckets", 1),
        overlap=options.get("overlap", False),
        queue_empty=spread(options.get("queue_empty", np.nan)),
        loader_work_s=None if loading is None else spread(loading),
        loaders=options.get("loaders", 0),
        work=work,
        gradient_bytes=options.get("gradient_bytes", 100e6),
    )


# ---- the simulation


@dataclass(slots=True)
class _Loader:
    """The loaders of one rank: batch i is made by loader i modulo their number, at most two ahead for each of them."""

    work_s: Floats  # (num_steps,)
    num: int
    made_s: list[float]
    taken_s: list[float]

    def take(self, step: int, asked_s: float, fetch_s: float) -> tuple[float, bool]:
        """Return when the batch of a step is there, and whether it was not ready when it was asked for."""
        if self.num == 0:
            return asked_s + float(self.work_s[step]) + fetch_s, True
        while len(self.made_s) <= step:
            batch = len(self.made_s)
            free_s = self.made_s[batch - self.num] if batch >= self.num else 0.0
            room_s = self.taken_s[batch - 2 * self.num] if batch >= 2 * self.num else 0.0
            self.made_s.append(max(free_s, room_s) + float(self.work_s[batch]))
        self.taken_s.append(max(asked_s, self.made_s[step]))
        return self.taken_s[step] + fetch_s, self.made_s[step] > asked_s


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is written down: marks are the borders of a step's spans, in the order of `NAMES`."""

    marks_s: Floats  # (num_ranks, num_steps, 10)
    empty: Floats  # (num_ranks, num_steps)
    met_s: Floats  # (num_ranks, num_steps, num_buckets, 3): ready, start, end


def simulate_data_parallel(pieces: Pieces) -> StepTimeline:
    """Return what is seen of ranks that work through these pieces."""
    seen = _run(pieces)
    num_ranks, num_steps = pieces.compute_s.shape
    accounts = np.zeros((num_ranks, num_steps, len(ACCOUNT_NAMES)))
    for at, name in enumerate(NAMES[:-1]):
        seconds = seen.marks_s[:, :, at + 1] - seen.marks_s[:, :, at]
        accounts[:, :, ACCOUNT_NAMES.index(_ACCOUNT_OF.get(name, name))] += seconds
    wait_s = seen.marks_s[:, :, 2] - seen.marks_s[:, :, 1]
    ready_s, start_s, end_s = np.moveaxis(seen.met_s, 3, 0)
    buckets = pieces.buckets
    return StepTimeline(
        source="record",
        name="simulated",
        ranks=tuple(Rank(rank=at, host=f"host{at}", data_rank=at, clock_error_s=0.0) for at in range(num_ranks)),
        steps=np.arange(num_steps),
        begin_s=seen.marks_s[:, :, 0],
        end_s=seen.marks_s[:, :, -1],
        accounts=accounts,
        spans=_spans(seen),
        names=NAMES,
        world=num_ranks,
        collectives=Collectives(
            kind=("all_reduce",) * buckets, group=np.zeros(buckets, np.int64),
            num_bytes=np.full(buckets, pieces.gradient_bytes / buckets), ready_s=ready_s, start_s=start_s, end_s=end_s,
        ) if num_ranks > 1 else None,
        loading=Loading(
            wait_s=wait_s, exposed_wait_s=wait_s, copy_s=pieces.h2d_s, queue_empty=seen.empty,
            work_s=np.full_like(wait_s, np.nan) if pieces.loader_work_s is None else pieces.loader_work_s,
            num_workers=-1 if pieces.loader_work_s is None else pieces.loaders,
        ),
        work=pieces.work,
        work_unit="tokens" if pieces.work is not None else "",
        unknown=_unknown(pieces, num_ranks),
    )  # fmt: skip


def _run(pieces: Pieces) -> _Seen:
    num_ranks, num_steps = pieces.compute_s.shape
    marks_s = np.zeros((num_ranks, num_steps, len(NAMES)))
    empty = pieces.queue_empty.copy()
    met_s = np.zeros((num_ranks, num_steps, pieces.buckets, 3))
    loaders = [
        _Loader(pieces.loader_work_s[rank], pieces.loaders, [], []) if pieces.loader_work_s is not None else None
        for rank in range(num_ranks)
    ]
    now_s = [0.0] * num_ranks
    for step in range(num_steps):
        for rank in range(num_ranks):
            at = [now_s[rank], now_s[rank] + float(pieces.host_gap_s[rank, step])]
            loader, fetch_s = loaders[rank], float(pieces.data_wait_s[rank, step])
            if loader is None:
                at.append(at[-1] + fetch_s)
            else:
                there_s, was_empty = loader.take(step, at[-1], fetch_s)
                at.append(there_s)
                empty[rank, step] = float(was_empty) if pieces.loaders else np.nan
            compute_s = float(pieces.compute_s[rank, step])
            for piece_s in (
                pieces.h2d_s[rank, step], pieces.gc_s[rank, step],
                compute_s * (1 - BACKWARD_SHARE), compute_s * BACKWARD_SHARE,
            ):  # fmt: skip
                at.append(at[-1] + float(piece_s))
            for bucket in range(pieces.buckets):
                to_come = (pieces.buckets - 1 - bucket) / pieces.buckets if pieces.overlap else 0.0
                met_s[rank, step, bucket, 0] = at[-1] - to_come * compute_s * BACKWARD_SHARE
            marks_s[rank, step, : len(at)] = at
        over_s = _exchange(pieces, step, met_s) if num_ranks > 1 else 0.0
        for rank in range(num_ranks):
            computed_s = marks_s[rank, step, 6]
            at = [max(computed_s, over_s)]
            at.append(at[-1] + float(pieces.optimizer_s[rank, step]))
            at.append(at[-1] + float(pieces.checkpoint_s[rank, step]))
            marks_s[rank, step, 7:] = at
            now_s[rank] = at[-1]
    return _Seen(marks_s, empty, met_s)


def _exchange(pieces: Pieces, step: int, met_s: Floats) -> float:
    """Let the ranks meet for each bucket, one after the other; return when the last one is over."""
    over_s = -np.inf
    for bucket in range(pieces.buckets):
        latest_s = -np.inf
        for rank in range(len(met_s)):
            start_s = max(float(met_s[rank, step, bucket, 0]), over_s)
            met_s[rank, step, bucket, 1] = start_s
            latest_s = max(latest_s, start_s)
        over_s = latest_s + float(pieces.transfer_s[step]) / pieces.buckets + pieces.latency_s
        met_s[:, step, bucket, 2] = over_s
    return over_s


# ---- what is drawn and said of it


def _spans(seen: _Seen) -> Spans:
    num_ranks, num_steps, num_marks = seen.marks_s.shape
    num_phases, buckets = num_marks - 1, seen.met_s.shape[2]
    if num_ranks == 1:
        buckets = 0
    rank, step, name = (each.ravel() for each in np.indices((num_ranks, num_steps, num_phases + buckets)))
    is_phase = name < num_phases
    start_s = np.concatenate([seen.marks_s[:, :, :-1], seen.met_s[:, :, :buckets, 0]], axis=2).ravel()
    end_s = np.concatenate([seen.marks_s[:, :, 1:], seen.met_s[:, :, :buckets, 2]], axis=2).ravel()
    kept = end_s > start_s
    columns = {
        "rank": rank, "step": step, "name": np.minimum(name, num_phases), "start_s": start_s, "end_s": end_s,
        "activity": np.array(_ACTIVITIES)[np.minimum(name, num_phases)],
        "lane": np.where(is_phase, Lane.HOST, Lane.COMMUNICATION),
        "group": np.where(is_phase, -1, 0), "sequence": np.where(is_phase, -1, step * buckets + name - num_phases),
    }  # fmt: skip
    return Spans.of(int(kept.sum()), **{key: column[kept] for key, column in columns.items()})


def _unknown(pieces: Pieces, num_ranks: int) -> dict[Signal, str]:
    found = {
        Signal.MEMORY_BANDWIDTH: "no counters",
        Signal.LAUNCHES: "the record does not see what is launched on a device",
        Signal.DEVICE: "the record has the host's time only; a profiler's trace has the device's",
    }
    if num_ranks == 1:
        found[Signal.ARRIVALS] = "there is one rank, which waits for nobody"
    if pieces.work is None:
        found[Signal.WORK] = "the record does not say what each rank consumed"
    if (pieces.loader_work_s is None or not pieces.loaders) and np.isnan(pieces.queue_empty).all():
        found[Signal.QUEUE] = "the loader has no prefetch queue to look into"
    return found
