"""The series of runs as people ask for them: by name, kind and rank, as summaries or point by point.

A name is given as a glob. It is looked for among metrics; one that fits no metric, among accounts and hardware, so that
`compute` or `host/*` needs no further word. Of a name that several ranks have, the lowest rank counts, as in the
catalog.

Points are read window by window along the axis, at the edges of chart columns, so that a series of any length passes
through memory that does not grow with it. Only points at one and the same position of the axis are never divided.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from gscalar.base.errors import UserError
from gscalar.control.indexing.series_reading import open_current
from gscalar.model.accounts import ACCOUNTS
from gscalar.model.hardware import HARDWARE
from gscalar.model.metrics import METRICS
from gscalar.state.home import Home
from gscalar.state.series import Chart, SeriesInfo, SeriesPoints, SeriesReader
from gscalar.views.describing import iso_time

KINDS: Final = ("metric", "account", "hardware")
WINDOW_POINTS: Final = 1 << 16
_COLUMNS_A_WINDOW: Final = 4
_MOST_OFFERED: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which series are asked for. Without patterns: all metrics, or with `everything` all kinds."""

    patterns: tuple[str, ...] = ()
    everything: bool = False
    rank: int | None = None  # None: of each name the lowest that has it; -1: the host
    all_ranks: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSeries:
    """The open series of one run, what there is of them, and what to call the run."""

    run_id: str
    label: str
    reader: SeriesReader
    infos: Sequence[SeriesInfo]

    def origin_ns(self) -> int:
        """Return the time of the run's first point, from which relative time counts."""
        return min((each.first_time_ns for each in self.infos), default=0)


@contextmanager
def fresh_series(home: Home, run_id: str, label: str) -> Iterator[RunSeries]:
    """Give the run's series as they are in its records by now.

    Raises:
        EnvironmentProblem: `store-newer`, `home-not-writable`, `disk-full`, `series-damaged`.
        Retryable: `catalog-busy`.
    """
    # A damaged store shows when it is read, and is then filled anew.
    reader, infos = open_current(home, run_id, SeriesReader.list)
    with reader:
        yield RunSeries(run_id=run_id, label=label, reader=reader, infos=infos)


# ---- which


def choose_series(infos: Sequence[SeriesInfo], choice: Choice) -> list[SeriesInfo]:
    """Return the series that are asked for, metrics first, by name and rank; none where nothing fits."""
    kinds = KINDS if choice.everything else KINDS[:1]
    found = [each for each in infos if each.kind in kinds and not choice.patterns]
    for pattern in choice.patterns:
        found += match_name(infos, pattern, everything=choice.everything)
    ordered = sorted(set(found), key=lambda each: (KINDS.index(each.kind), each.name, each.rank))
    if choice.all_ranks:
        return ordered
    if choice.rank is not None:
        return [each for each in ordered if each.rank == choice.rank]
    return list({(each.kind, each.name): each for each in reversed(ordered)}.values())[::-1]


def match_name(infos: Sequence[SeriesInfo], pattern: str, *, everything: bool = False) -> list[SeriesInfo]:
    """Return the series whose name fits the pattern: metrics, or where none does (or with `everything`) all kinds."""
    fitting = [each for each in infos if each.name == pattern or fnmatchcase(each.name, pattern)]
    metrics = [each for each in fitting if each.kind == KINDS[0]]
    return fitting if everything or not metrics else metrics


def check_choice(runs: Mapping[str, Sequence[SeriesInfo]], choice: Choice) -> None:
    """Refuse a pattern or a rank that fits no series of any of the runs.

    Raises:
        UserError: `metric-not-found`, with the nearest names, or the ranks that there are.
    """
    infos = [each for found in runs.values() for each in found]
    for pattern in choice.patterns:
        found = match_name(infos, pattern, everything=choice.everything)
        if not found:
            raise _unknown_name(pattern, sorted({each.name for each in infos}))
        if choice.rank is not None and all(each.rank != choice.rank for each in found):
            raise _unknown_rank(choice.rank, pattern, sorted({each.rank for each in found}))
    if infos and choice.rank is not None and all(each.rank != choice.rank for each in infos):
        raise _unknown_rank(choice.rank, "anything", sorted({each.rank for each in infos}))


def _unknown_name(pattern: str, names: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(pattern, names, n=_MOST_OFFERED, cutoff=0.5)
    # "loss" is not close to "train/loss" by letters, and is what people type.
    near += [name for name in names if pattern.lower() in name.lower() and name not in near]
    offered = f"Did you mean {' or '.join(near[:_MOST_OFFERED])}? " if near else ""
    return UserError(
        code="metric-not-found",
        what="No series has this name." if names else "The run has no series by now, so none of this name.",
        value=pattern,
        next_step=f"{offered}`gscalar metrics RUN --all` lists all names; `*` stands for any letters.",
    )


def _unknown_rank(rank: int, name: str, ranks: Sequence[int]) -> UserError:
    there = ", ".join("host" if each < 0 else str(each) for each in ranks)
    return UserError(
        code="metric-not-found",
        what=f"No such rank has recorded {name}.",
        value="host" if rank < 0 else rank,
        next_step=f"These have: {there}.",
    )


# ---- summaries


def describe_series(run_id: str, info: SeriesInfo) -> dict[str, Any]:
    """Return one series as JSON values with stable keys; numbers may be NaN or infinite."""
    timed_only = info.kind == "hardware"
    return {
        "run": run_id,
        "kind": info.kind,
        "name": info.name,
        "rank": info.rank,
        "unit": find_unit(info.kind, info.name),
        "count": info.count,
        "last": info.last,
        "min": info.least,
        "max": info.greatest,
        "first_step": None if timed_only else info.first_step,
        "last_step": None if timed_only else info.last_step,
        "first_time": iso_time(info.first_time_ns),
        "last_time": iso_time(info.last_time_ns),
        "nan": info.num_nan,
        "posinf": info.num_posinf,
        "neginf": info.num_neginf,
    }


def find_unit(kind: str, name: str) -> str | None:
    """Return the unit of what gscalar itself records; None of what a script logs."""
    if kind == "account":
        return "s" if name in ACCOUNTS else None
    known = METRICS.get(name) if kind == "metric" else HARDWARE.get(re.sub(r"^gpu\d+", "gpu*", name))
    return known.unit if known else None


# ---- points


def iter_points(
    reader: SeriesReader, info: SeriesInfo, *, axis: str, begin: int | None = None, end: int | None = None
) -> Iterator[SeriesPoints]:
    """Yield all points from `begin` to `end` of the axis in its order, some ten thousands at a time."""
    for low, high in point_windows(reader, info, axis=axis, begin=begin, end=end):
        points = reader.points(info.kind, info.name, info.rank, axis=axis, begin=low, end=high)
        if len(points.steps):
            yield points


def point_windows(
    reader: SeriesReader, info: SeriesInfo, *, axis: str, begin: int | None, end: int | None
) -> Iterator[tuple[int | None, int | None]]:
    """Yield stretches of the axis that together are all from `begin` to `end`, of about 65,536 points each."""
    if info.count <= WINDOW_POINTS:
        yield begin, end
        return
    columns = _COLUMNS_A_WINDOW * -(-info.count // WINDOW_POINTS)
    chart = reader.chart(info.kind, info.name, info.rank, axis=axis, begin=begin, end=end, columns=columns)
    yield from group_columns(chart, begin, end)


def group_columns(chart: Chart, begin: int | None, end: int | None) -> Iterator[tuple[int | None, int | None]]:
    """Yield stretches from `begin` to `end` that end where columns do, of about as many points as one read takes."""
    low, held = begin, 0
    counts = chart.count.tolist()
    # The first of a column where each point is its own may stand at the end of the one before.
    for place, (last, following) in enumerate(zip(chart.end.tolist(), chart.begin.tolist()[1:], strict=False)):
        held += counts[place]
        if held + counts[place + 1] > WINDOW_POINTS and following > last:
            yield low, last
            low, held = last + 1, 0
    yield low, end
