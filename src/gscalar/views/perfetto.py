"""A timeline as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing: the Trace Event format's JSON.

A rank is a process, and a lane is a thread of it; the steps have a lane of their own. Viewers draw the events of one
thread as a tree, so that one which reaches beyond the end of another that it began in is not drawn, or drawn wrongly.
Exchanges of gradients do that all the time: a lane takes as many threads as it needs for all its spans to nest.

Arrows go from the rank that came last to a collective to each that waited for it, where the ranks' clocks are known.
Times are microseconds from the earliest event on. Events are made as they are asked for; only the columns are held.

Source: "Trace Event Format" (Google, 2016): complete events (X), metadata (M) and flows (s, f with bp=e).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from gscalar.model.timeline import NONE, Activity, Floats, Ints, Lane, StepTimeline
from gscalar.views.writing import write_file

_STEPS: Final = len(Lane)  # the thread of the steps
_ROW: Final = 16  # threads of a lane are so far apart
_ARGUMENTS: Final = ("group", "sequence", "micro", "chunk", "device")

Json = dict[str, Any]


def write_trace(timeline: StepTimeline, path: Path) -> None:
    """Write the trace to a file, which is there once it is whole. Raises `EnvironmentProblem` report-not-writable."""
    write_file(path, chrome_trace(timeline), "trace")


def chrome_trace(timeline: StepTimeline) -> Iterator[str]:
    """Yield the text of one JSON object, piece by piece."""
    separator = '{"displayTimeUnit":"ms","traceEvents":[\n'
    for event in _events(timeline):
        yield separator + json.dumps(event, separators=(",", ":"), allow_nan=False)
        separator = ",\n"
    if separator.startswith("{"):  # a timeline of no rank
        yield separator
    yield "\n]}\n"


def _events(timeline: StepTimeline) -> Iterator[Json]:
    origin_s = _origin_s(timeline)
    spans = timeline.spans
    start_ns, end_ns = (_nanoseconds(each - origin_s) for each in (spans.start_s, spans.end_s))
    rows = _nest(spans.rank, spans.lane, start_ns, end_ns)
    threads = spans.lane + _ROW * rows
    yield from _names(timeline, threads)
    yield from _steps(timeline, origin_s)
    for at in np.flatnonzero(np.isfinite(spans.start_s) & np.isfinite(spans.end_s)):
        yield _span(timeline, int(at), int(threads[at]), int(start_ns[at]), int(end_ns[at]))
    if np.isfinite(timeline.clock_error_s):
        yield from _arrows(timeline, threads, start_ns, end_ns)


def _origin_s(timeline: StepTimeline) -> float:
    times = np.concatenate([timeline.begin_s.ravel(), timeline.spans.start_s])
    times = times[np.isfinite(times)]
    return float(times.min()) if len(times) else 0.0


def _nanoseconds(seconds: Floats) -> Ints:
    found: Ints = np.rint(np.nan_to_num(seconds) * 1e9).astype(np.int64)
    return found


def _nest(rank: Ints, lane: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the row of each span in its lane: the first one in which it nests with those before it."""
    rows = np.zeros(len(rank), np.int64)
    place: tuple[int, int] | None = None
    open_ns: list[list[int]] = []  # of each row, the ends of the spans that are open, outermost first
    # Of two that begin together the longer one is outside.
    for at in np.lexsort((-end_ns, start_ns, lane, rank)):
        here = int(rank[at]), int(lane[at])
        if here != place:
            place, open_ns = here, []
        row = _fitting_row(open_ns, int(start_ns[at]), int(end_ns[at]))
        open_ns[row].append(int(end_ns[at]))
        rows[at] = row
    return rows


def _fitting_row(open_ns: list[list[int]], start_ns: int, end_ns: int) -> int:
    for row, ends in enumerate(open_ns):
        while ends and ends[-1] <= start_ns:
            ends.pop()
        if not ends or end_ns <= ends[-1]:
            return row
    open_ns.append([])
    return len(open_ns) - 1


def _names(timeline: StepTimeline, threads: Ints) -> Iterator[Json]:
    for index, rank in enumerate(timeline.ranks):
        host = f" on {rank.host}" if rank.host else ""
        yield _metadata("process_name", rank.rank, {"name": f"rank {rank.rank}{host}"})
        yield _metadata("process_sort_index", rank.rank, {"sort_index": rank.rank})
        if timeline.num_steps:
            yield _metadata("thread_name", rank.rank, {"name": "steps"}, _STEPS)
            yield _metadata("thread_sort_index", rank.rank, {"sort_index": -1}, _STEPS)
        for thread in np.unique(threads[timeline.spans.rank == index]).tolist():
            row, lane = divmod(thread, _ROW)
            name = Lane(lane).name.lower() + (f" {row + 1}" if row else "")
            yield _metadata("thread_name", rank.rank, {"name": name}, thread)
            yield _metadata("thread_sort_index", rank.rank, {"sort_index": lane * _ROW + row}, thread)


def _metadata(name: str, process: int, arguments: Json, thread: int | None = None) -> Json:
    place = {} if thread is None else {"tid": thread}
    return {"ph": "M", "name": name, "pid": process, **place, "args": arguments}


def _steps(timeline: StepTimeline, origin_s: float) -> Iterator[Json]:
    begin_ns, end_ns = (_nanoseconds(each - origin_s) for each in (timeline.begin_s, timeline.end_s))
    for index, at in np.argwhere(np.isfinite(timeline.begin_s) & np.isfinite(timeline.end_s)):
        number = int(timeline.steps[at])
        arguments: Json = {"step": number}
        if timeline.work is not None and np.isfinite(timeline.work[index, at]):
            arguments[timeline.work_unit or "work"] = float(timeline.work[index, at])
        yield {
            "ph": "X", "name": f"step {number}", "cat": "step", "pid": timeline.ranks[index].rank, "tid": _STEPS,
            "ts": begin_ns[index, at] / 1000, "dur": max(int(end_ns[index, at] - begin_ns[index, at]), 0) / 1000,
            "args": arguments,
        }  # fmt: skip


def _span(timeline: StepTimeline, at: int, thread: int, start_ns: int, end_ns: int) -> Json:
    spans = timeline.spans
    arguments: Json = {name: int(getattr(spans, name)[at]) for name in _ARGUMENTS if getattr(spans, name)[at] != NONE}
    if np.isfinite(spans.num_bytes[at]):
        arguments["bytes"] = float(spans.num_bytes[at])
    if spans.step[at] != NONE:
        arguments["step"] = int(timeline.steps[spans.step[at]])
    activity = Activity(int(spans.activity[at])).name.lower()
    return {
        "ph": "X", "name": timeline.names[spans.name[at]] if spans.name[at] != NONE else activity, "cat": activity,
        "pid": timeline.ranks[spans.rank[at]].rank, "tid": thread,
        "ts": start_ns / 1000, "dur": max(end_ns - start_ns, 0) / 1000, "args": arguments,
    }  # fmt: skip


def _arrows(timeline: StepTimeline, threads: Ints, start_ns: Ints, end_ns: Ints) -> Iterator[Json]:
    """Yield a flow from the last rank's arrival to each rank that was there and waited."""
    spans = timeline.spans
    meets = np.flatnonzero((spans.lane == Lane.COMMUNICATION) & (spans.group != NONE) & (spans.sequence != NONE))
    if not len(meets):
        return
    keys = np.stack([spans.step[meets], spans.group[meets], spans.sequence[meets]])
    _, number = np.unique(keys, axis=1, return_inverse=True)
    number = number.ravel()
    order = np.lexsort((start_ns[meets], number))
    num_flows = 0
    for members in np.split(meets[order], np.flatnonzero(np.diff(number[order])) + 1):
        last = int(members[-1])
        for waiting in members[:-1].tolist():
            if spans.rank[waiting] == spans.rank[last] or not start_ns[waiting] < start_ns[last] <= end_ns[waiting]:
                continue
            num_flows += 1
            for phase, at in (("s", last), ("f", waiting)):
                yield {
                    "ph": phase, "id": num_flows, "name": "arrival", "cat": "arrival",
                    "pid": timeline.ranks[spans.rank[at]].rank, "tid": int(threads[at]),
                    "ts": int(start_ns[last]) / 1000, **({"bp": "e"} if phase == "f" else {}),
                }  # fmt: skip
