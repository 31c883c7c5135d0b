"""The newest steps of a run as a `StepTimeline`, from the ends of its workers' records.

The timeline has the steps that all its ranks have told of, in rank 0's time. A step's frame ends where the step did and
is as long as its accounts: an evaluation, which lies at the begin of the step after it, is in no frame. The first
two steps of an attempt warm up (compilation, buckets that are laid out anew) and are left out where enough others are
there. What a rank consumed is its work: its tokens where the script counts them, else its weights, else its samples.

Each file is read in a bounded number of bytes, and of a large gang fewer steps are taken. Limits: what happens on
a device is not in the record, only what its host sees; and a collective that was still going at the end of its
step belongs to the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gscalar.model.accounts import ACCOUNTS
from gscalar.model.events import Clock
from gscalar.model.spans import CollectiveKind, SpanKind
from gscalar.model.timeline import (
    Collectives,
    Floats,
    Ints,
    Loading,
    Rank,
    Signal,
    Spans,
    StepTimeline,
    no_steps,
)
from gscalar.observation.collectives import GRADIENTS
from gscalar.state.home import RunFolder
from gscalar.views.record_ends import RecordEnd, read_record_end
from gscalar.views.step_columns import Columns, Dense, align_collectives, choose_clocks, kind_name, read_columns
from gscalar.views.step_counters import mean_counters
from gscalar.views.step_spans import draw_spans

MOST_STEPS: Final = 200
_MOST_CELLS: Final = 1 << 15  # ranks times steps
_FEWEST_STEPS: Final = 10
_WARM_UP: Final = 2
_ENOUGH: Final = 5  # steps beside those that warm up
_BYTES_A_RANK: Final = 1 << 19
# Of a gang of hundreds, each file gives fewer steps.
_BYTES_IN_ALL: Final = 1 << 24
_FEWEST_BYTES: Final = 1 << 15
_WORKER_RECORD: Final = re.compile(r"a(\d+)-r(\d+)\.rec")
_FEW: Final = 8  # ranks that a note lists

_NEVER_TOLD: Final = {
    Signal.MEMORY_BANDWIDTH: "no counters",
    Signal.LAUNCHES: "the record does not see what is launched on a device",
    Signal.DEVICE: "the record has the host's time only; a profiler's trace has the device's",
}
_OF_ACCOUNTS: Final = (
    Signal.COMPUTE,
    Signal.COMMUNICATION,
    Signal.DATA_WAIT,
    Signal.GC,
    Signal.CHECKPOINTS,
)

Ends = dict[int, RecordEnd]  # by rank


@dataclass(frozen=True, kw_only=True, slots=True)
class _Told:
    """What the records tell of the chosen steps, rank by rank in one order."""

    ends: Ends
    columns: list[Columns]
    steps: Ints
    dense: Dense | None
    origin_ns: int

    def seconds(self, time_ns: Ints) -> Floats:
        """Return seconds from the first step's begin."""
        found: Floats = (time_ns - self.origin_ns) / 1e9
        return found

    def stack(self, name: str) -> Floats:
        """Return a column of all ranks, `(num_ranks, num_steps)`."""
        return np.stack([getattr(each, name) for each in self.columns])


def run_timeline(
    folder: RunFolder,
    *,
    attempt: int | None = None,
    most_steps: int = MOST_STEPS,
    clocks: Mapping[str, Mapping[str, float]] | None = None,
) -> StepTimeline:
    """Return the newest steps of an attempt: of the newest one that has any, where none is named.

    `clocks` are the newest estimates by rank, as the catalog has them (`RunSummary.measured`): the ends of long
    records may lack one. What does not fit or is missing is in `notes`; where there are no steps, they say so.
    """
    chosen, ends = _choose_attempt(folder, attempt)
    notes: list[str] = []
    trained = _together(ends, notes)
    steps = _choose_steps(trained, most_steps, notes)
    if not steps:
        return _without_steps(folder, chosen, ends, notes)
    first_host = ends[0].host if 0 in ends else ""
    columns = [
        read_columns(end, steps, choose_clocks(end, rank, first_host, _newest_clock(clocks or {}, rank)))
        for rank, end in trained.items()
    ]
    dense = align_collectives(columns) if len(columns) > 1 else None
    numbers = np.array(steps, np.int64)
    if dense is not None and not dense.kept.all():
        notes.append(f"{int((~dense.kept).sum())} steps whose collectives are not the usual ones are left out")
        columns, numbers = [each.keep(dense.kept) for each in columns], numbers[dense.kept]
    elif dense is None and len(columns) > 1 and any(len(each.collectives.step) for each in columns):
        notes.append("the steps have no collectives in common: which rank came last is not known")
    origin_ns = min(int(each.begin_ns.min()) for each in columns)
    told = _Told(ends=trained, columns=columns, steps=numbers, dense=dense, origin_ns=origin_ns)
    return _assemble(folder, chosen, _world(ends), told, notes)


# ---- which ranks and steps


def _choose_attempt(folder: RunFolder, attempt: int | None) -> tuple[int, Ends]:
    """Return an attempt and what its ranks' records say: the newest with steps, else the newest."""
    files = _worker_files(folder)
    wanted = [attempt] if attempt is not None else sorted(files, reverse=True)
    found: list[tuple[int, Ends]] = []
    for each in wanted:
        ranks = sorted(files.get(each, ()))
        num_bytes = min(_BYTES_A_RANK, max(_FEWEST_BYTES, _BYTES_IN_ALL // max(1, len(ranks))))
        ends = {rank: read_record_end(folder.worker_record(each, rank), num_bytes) for rank in ranks}
        found.append((each, ends))
        if any(end.steps for end in ends.values()):
            return each, ends
    return found[0] if found else (0, {})


def _worker_files(folder: RunFolder) -> dict[int, list[int]]:
    """Return the ranks that have a record, by attempt."""
    found: dict[int, list[int]] = {}
    names = [path.name for path in folder.records.iterdir()] if folder.records.is_dir() else []
    for match in filter(None, map(_WORKER_RECORD.fullmatch, names)):
        found.setdefault(int(match[1]), []).append(int(match[2]))
    return found


def _together(ends: Ends, notes: list[str]) -> Ends:
    """Return the ranks that have steps in common with the one that came farthest."""
    absent = [rank for rank in range(_world(ends)) if rank not in ends]
    if absent:
        notes.append(f"no record of {_listed(absent)}")
    timed = {rank: end.timed for rank, end in ends.items()}
    idle = [rank for rank, steps in timed.items() if not steps]
    if idle and len(idle) < len(ends):
        notes.append(f"no steps of {_listed(idle)}")
    farthest = max((steps for steps in timed.values() if steps), key=max, default=set())
    apart = [rank for rank, steps in timed.items() if steps and not steps & farthest]
    if apart:
        notes.append(f"{_listed(apart)} did none of the newest steps")
    return {rank: end for rank, end in ends.items() if timed[rank] & farthest}


def _choose_steps(ends: Ends, most_steps: int, notes: list[str]) -> list[int]:
    """Return the newest steps that all ranks have, in order."""
    if not ends:
        return []
    steps = sorted(set.intersection(*(end.timed for end in ends.values())))
    first = max((end.first_step for end in ends.values() if end.first_step is not None), default=0)
    warm = [step for step in steps if step >= first + _WARM_UP]
    if len(warm) >= _ENOUGH and len(warm) < len(steps):
        notes.append(f"the steps of the attempt before {first + _WARM_UP} are left out: they warm up")
        steps = warm
    most = min(most_steps, max(_FEWEST_STEPS, _MOST_CELLS // len(ends)))
    return steps[-most:]


def _world(ends: Ends) -> int:
    told = [end.header.world for end in ends.values() if end.header is not None]
    return max([*told, *(rank + 1 for rank in ends)], default=0)


def _newest_clock(clocks: Mapping[str, Mapping[str, float]], rank: int) -> Clock | None:
    found = clocks.get(str(rank))
    if not found:
        return None
    return Clock(int(found["time_ns"]), found["offset_s"], found["drift"], found["bound_s"], num_pings=0)


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(each) for each in ranks[:_FEW])
    more = f" and {len(ranks) - _FEW} more" if len(ranks) > _FEW else ""
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {shown}{more}"


# ---- the timeline


def _without_steps(folder: RunFolder, attempt: int, ends: Ends, notes: list[str]) -> StepTimeline:
    why = "no rank of it has done a step" if ends else "it has no record of a worker"
    return StepTimeline(
        source="record",
        name=folder.path.name,
        ranks=tuple(_rank(rank, end) for rank, end in ends.items()),
        spans=Spans.of(0),
        names=(),
        world=_world(ends),
        unknown=dict.fromkeys(Signal, "there are no steps"),
        notes=(*notes, f"attempt {attempt} has no steps: {why}"),
        **no_steps(len(ends)),  # type: ignore[arg-type]  # by its docstring
    )


def _assemble(folder: RunFolder, attempt: int, world: int, told: _Told, notes: list[str]) -> StepTimeline:
    spans, names = draw_spans(told.columns, told.seconds)
    end_s = told.seconds(np.stack([each.end_ns for each in told.columns]))
    begin_s = end_s - np.stack([each.duration_ns for each in told.columns]) / 1e9
    accounts = told.stack("accounts")
    work, work_unit = _work(told)
    loading = _loading(told)
    timeline = StepTimeline(
        source="record",
        name=folder.path.name,
        ranks=tuple(_rank(rank, end, at) for (rank, end), at in zip(told.ends.items(), told.columns, strict=True)),
        steps=told.steps,
        begin_s=begin_s,
        end_s=end_s,
        accounts=accounts,
        spans=spans,
        names=names,
        world=world,
        collectives=_collectives(told),
        loading=loading,
        work=work,
        work_unit=work_unit,
        counters=mean_counters(folder, attempt, told.ends, told.steps) | _samples(told),
        notes=tuple(notes),
    )
    return replace(timeline, unknown=_unknown(timeline))


def _rank(rank: int, end: RecordEnd, columns: Columns | None = None) -> Rank:
    if columns is None:
        return Rank(rank=rank, host=end.host, data_rank=rank)
    return Rank(
        rank=rank, host=end.host, data_rank=rank, clock_offset_s=columns.offset_s, clock_error_s=columns.error_s
    )


def _collectives(told: _Told) -> Collectives | None:
    if told.dense is None:
        return None
    rows = told.dense.rows
    return Collectives(
        kind=tuple(kind_name(int(each), CollectiveKind) for each in rows[0, 0, :, 0]),
        group=rows[0, 0, :, 1],
        num_bytes=np.median(rows[..., 3], axis=(0, 1)),
        ready_s=told.seconds(rows[..., 4]),
        start_s=told.seconds(rows[..., 5]),
        end_s=told.seconds(rows[..., 6]),
    )


def _samples(told: _Told) -> dict[str, Floats]:
    """Return the mean samples of a step by rank, where all ranks counted theirs."""
    samples = np.stack([each.own["samples"] for each in told.columns])
    return {"samples": samples.mean(axis=1)} if bool(np.isfinite(samples).all()) else {}


def _work(told: _Told) -> tuple[Floats | None, str]:
    for unit in ("tokens", "weight", "samples"):
        own = np.stack([each.own[unit] for each in told.columns])
        if np.isfinite(own).all() and (own.sum(axis=0) > 0).all():
            samples = np.stack([each.own["samples"] for each in told.columns])
            return own, "samples" if np.array_equal(own, samples) else unit
    return None, ""


def _loading(told: _Told) -> Loading:
    wait_s, copy_s = (told.stack("accounts")[..., list(ACCOUNTS).index(name)] for name in ("data_wait", "h2d"))
    unknown = np.full_like(wait_s, np.nan)
    queue_empty = unknown.copy()
    for at, each in enumerate(told.columns):
        waits = each.spans.where((each.spans.fields[:, 0] == SpanKind.DATA_WAIT) & (each.spans.fields[:, 3] >= 0))
        num_waits, num_empty = (
            np.bincount(waits.step, weights, minlength=len(told.steps)) for weights in (None, waits.fields[:, 3] == 0)
        )
        np.divide(num_empty, num_waits, out=queue_empty[at], where=num_waits > 0)
    # What a device does while its host waits is not in the record.
    on_host = all(end.facts.get("device") == "cpu" for end in told.ends.values())
    return Loading(
        wait_s=wait_s,
        work_s=unknown,
        exposed_wait_s=wait_s if on_host else unknown,
        copy_s=copy_s,
        queue_empty=queue_empty,
    )


def _unknown(timeline: StepTimeline) -> dict[Signal, str]:
    found = dict(_NEVER_TOLD)
    if np.isnan(timeline.accounts).any():
        found |= dict.fromkeys(_OF_ACCOUNTS, "some steps carry no accounts: an older version has written them")
    met, alone = timeline.collectives, timeline.world < 2
    if alone:
        found[Signal.ARRIVALS] = "there is one rank, which waits for nobody"
    elif met is None:
        found[Signal.ARRIVALS] = "no collective is recorded that all ranks have in their steps"
    if not alone and (met is None or GRADIENTS not in met.group):
        found.setdefault(
            Signal.COMMUNICATION, "no exchange of gradients was seen: on a GPU, or by the trainer's own means"
        )
    if timeline.work is None:
        found[Signal.WORK] = "the record does not say what each rank consumed"
    if np.isnan(timeline.clock_error_s):
        found[Signal.CLOCKS] = "the ranks' clocks could not be compared"
    if timeline.loading is None or np.isnan(timeline.loading.queue_empty).all():
        found[Signal.QUEUE] = "the loader has no prefetch queue to look into"
    return found
