"""The timeline that a report draws: a few steps, as tracks of spans, small enough for any browser.

Of the steps the median one, the slowest one and their neighbours are drawn; of many ranks those that the verdict
names, those that others waited for, and an even sample. Spans that are too short to be seen are joined where all of
them would be too many: those that begin in the same slice of a lane become one, which says how many it stands for.
Slices grow until what is left fits.

Where clocks are not aligned, each rank is drawn from its own step's begin, and nothing is drawn across ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gscalar.model.timeline import COMMUNICATES, NONE, Activity, Floats, Ints, Lane, Signal, StepTimeline
from gscalar.views.reporting.meetings import Meetings, find_meetings
from gscalar.views.reporting.names import Names
from gscalar.views.reporting.spans import Drawn, fit

MOST_RANKS: Final = 48
MOST_SPANS: Final = 20_000  # over all scenes
_MOST_MEETINGS: Final = 200  # of a scene
_MOST_NAMED: Final = 16
_LEAST_LATE: Final = 1.02  # of what its peers take: who is not longer than that is not called the longest
_TICKS: Final = 4_000_000  # of a scene's length: what its times are rounded to

# How a page colours what is done; the order is that of `KINDS` in page.js.
KINDS: Final = (
    "compute", "backward", "exposed_communication", "data_wait", "h2d", "optimizer", "checkpoint", "gc", "host_gap",
    "other",
)  # fmt: skip
_KIND_OF: Final = {
    Activity.COMPUTE: "compute", Activity.FORWARD: "compute", Activity.BACKWARD: "backward",
    Activity.OPTIMIZER: "optimizer", Activity.DATA_WAIT: "data_wait", Activity.H2D: "h2d", Activity.COPY: "h2d",
    Activity.SET: "h2d", Activity.CHECKPOINT: "checkpoint", Activity.GC: "gc", Activity.HOST: "host_gap",
    Activity.LAUNCH: "host_gap",
}  # fmt: skip
KIND_OF_ACTIVITY: Final = np.array(
    [
        KINDS.index("exposed_communication" if each in COMMUNICATES else _KIND_OF.get(each, "other"))
        for each in Activity
    ],
    np.int64,
)

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenes:
    """What the page's script draws, and what is to be said beside it."""

    data: Json
    remarks: tuple[str, ...]


def draw_scenes(timeline: StepTimeline, named: Sequence[int]) -> Scenes | None:
    """Return the scenes of a timeline; None where it has no spans. `named` are the ranks of the verdict."""
    if not len(timeline.spans):
        return None
    steps = choose_steps(timeline)
    aligned = bool(np.isfinite(timeline.clock_error_s))
    seen = [_look(timeline, step) for step in steps]
    lasts = [_last_rank(timeline, each, aligned=aligned) for each in seen]
    shown = choose_ranks(timeline, named, [each for each in lasts if each is not None])
    names = Names(timeline.names)
    budget = MOST_SPANS // len(seen)
    scenes = [
        _scene(timeline, each, shown, names, budget=budget, last=last, aligned=aligned)
        for each, last in zip(seen, lasts, strict=True)
    ]
    data: Json = {
        "ranks": [_rank(timeline, index, named) for index in shown.tolist()],
        "kinds": KINDS,
        "lanes": [each.name.lower() for each in Lane],
        "names": names.told(),
        "scenes": scenes,
        "first": _first(timeline, steps),
        "pipeline": timeline.is_pipeline,
    }
    return Scenes(
        data=data,
        remarks=(*_remarks(timeline, shown, scenes, aligned=aligned), *_lasts_said(timeline, steps, lasts)),
    )


def choose_steps(timeline: StepTimeline) -> list[int]:
    """Return indices of the steps that are drawn, in order; NONE alone where spans belong to no step."""
    step = timeline.spans.step
    counts = np.bincount(step[step != NONE], minlength=timeline.num_steps)[: timeline.num_steps]
    frame_s = frames(timeline)
    there = np.flatnonzero((counts > 0) & np.isfinite(frame_s))
    if not len(there):
        return [NONE]
    slowest = int(np.argmax(frame_s[there]))
    middle = int(np.argmin(np.abs(frame_s[there] - np.median(frame_s[there]))))
    chosen = {at for center in (slowest, middle) for at in (center - 1, center, center + 1) if 0 <= at < len(there)}
    return [int(there[at]) for at in sorted(chosen)]


def frames(timeline: StepTimeline) -> Floats:
    """Return the seconds of each step of the slowest rank, `(num_steps,)`; NaN where no rank has it."""
    if not timeline.num_ranks:
        return np.full(timeline.num_steps, np.nan)
    longest: Floats = np.where(np.isfinite(timeline.step_s), timeline.step_s, -np.inf).max(axis=0)
    return np.where(np.isfinite(longest), longest, np.nan)


def choose_ranks(timeline: StepTimeline, named: Sequence[int], lasts: Sequence[int]) -> Ints:
    """Return indices of the ranks that are drawn: all, or those that matter and an even sample."""
    num = timeline.num_ranks
    if num <= MOST_RANKS:
        return np.arange(num)
    by_number = {each.rank: index for index, each in enumerate(timeline.ranks)}
    wanted = [by_number[rank] for rank in named[:_MOST_NAMED] if rank in by_number] + list(dict.fromkeys(lasts))
    evenly = np.linspace(0, num - 1, MOST_RANKS).astype(np.int64).tolist()
    return np.array(sorted(list(dict.fromkeys(wanted + evenly))[:MOST_RANKS]), np.int64)


@dataclass(frozen=True, slots=True)
class _Look:
    """The spans of one step, their ranks, and who met in it."""

    step: int
    spans: Ints
    rank: Ints
    meetings: Meetings


def _look(timeline: StepTimeline, step: int) -> _Look:
    spans = timeline.spans
    chosen = spans.step == step
    if step != NONE:
        begin_s, end_s = timeline.begin_s[:, step][spans.rank], timeline.end_s[:, step][spans.rank]
        # What belongs to no step, such as a loader's work, is drawn in the steps that it lies in.
        chosen = chosen | ((spans.step == NONE) & (spans.start_s < end_s) & (spans.end_s > begin_s))
    found = np.flatnonzero(chosen & np.isfinite(spans.start_s) & (spans.end_s >= spans.start_s))
    return _Look(step, found, spans.rank[found], find_meetings(timeline, found))


def _last_rank(timeline: StepTimeline, look: _Look, *, aligned: bool) -> int | None:
    """Return the rank that the others waited for longest; in a pipeline the one that computed longest for its stage.

    In a pipeline lateness is handed on from stage to stage, and who came last somewhere says little.
    """
    if not timeline.is_pipeline:
        return look.meetings.last_rank(look.rank) if aligned else None
    computes = np.isin(timeline.spans.activity[look.spans], (Activity.COMPUTE, Activity.FORWARD, Activity.BACKWARD))
    taken_s = np.bincount(
        look.rank[computes], timeline.spans.duration_s[look.spans[computes]], minlength=timeline.num_ranks
    )
    stage = np.array([each.stage for each in timeline.ranks])
    usual_s = np.array([np.median(taken_s[stage == each]) for each in stage])
    ratio = np.divide(taken_s, usual_s, out=np.ones_like(taken_s), where=usual_s > 0)
    longest = int(ratio.argmax())
    return longest if ratio[longest] >= _LEAST_LATE else None


def _lasts_said(timeline: StepTimeline, steps: Sequence[int], lasts: Sequence[int | None]) -> list[str]:
    """Return, for each rank that was last in a step that is drawn, in which ones."""
    by_rank: dict[int, list[str]] = {}
    for step, last in zip(steps, lasts, strict=True):
        if last is not None and step != NONE:
            by_rank.setdefault(timeline.ranks[last].rank, []).append(str(timeline.steps[step]))
    what = "computed longest against its stage" if timeline.is_pipeline else "was waited for longest"
    return [
        f"rank {rank} {what} in step{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        for rank, numbers in sorted(by_rank.items())
    ]


def _scene(
    timeline: StepTimeline,
    look: _Look,
    shown: Ints,
    names: Names,
    *,
    budget: int,
    last: int | None,
    aligned: bool,
) -> Json:
    begin_s, end_s = _bounds(timeline, look)
    shift_s = np.zeros(timeline.num_ranks) if aligned else begin_s - np.nanmin(begin_s, initial=np.inf)
    shift_s = np.nan_to_num(shift_s)
    drawn = np.isin(look.rank, shown)
    first_s = float(np.nanmin(begin_s - shift_s, initial=np.inf))
    length_s = max(float(np.nanmax(end_s - shift_s, initial=-np.inf)) - first_s, 1e-9)
    place = np.full(timeline.num_ranks, NONE)
    place[shown] = np.arange(len(shown))
    spans, at = timeline.spans, look.spans[drawn]
    start_s = np.clip(spans.start_s[at] - shift_s[look.rank[drawn]] - first_s, 0.0, length_s)
    end_at_s = np.clip(spans.end_s[at] - shift_s[look.rank[drawn]] - first_s, start_s, length_s)
    columns = Drawn(
        rank=place[look.rank[drawn]], lane=spans.lane[at], start_s=start_s, end_s=end_at_s,
        kind=KIND_OF_ACTIVITY[spans.activity[at]], name=spans.name[at], num_bytes=spans.num_bytes[at],
        micro=spans.micro[at],
        wait_s=look.meetings.wait_s[drawn], count=np.ones(len(at), np.int64), busy_s=end_at_s - start_s,
    )  # fmt: skip
    fitted, slice_s = fit(columns, budget, length_s)
    tick_s = length_s / _TICKS
    return {
        "step": None if look.step == NONE else int(timeline.steps[look.step]),
        "tick": tick_s,
        "length": _TICKS,
        "slice": slice_s,
        "last": None if last is None else [int(place[last])],
        "ends": [
            None if not np.isfinite(each) else round(float(each) / tick_s)
            for each in ((end_s - shift_s)[shown] - first_s if look.step != NONE else np.full(len(shown), np.nan))
        ],
        "meets": _lines(look, place, first_s, tick_s) if aligned else [],
        **fitted.told(tick_s, names),
    }


def _bounds(timeline: StepTimeline, look: _Look) -> tuple[Floats, Floats]:
    """Return when each rank's step began and ended; without steps, when its spans did."""
    if look.step != NONE:
        return timeline.begin_s[:, look.step], timeline.end_s[:, look.step]
    begin_s, end_s = np.full(timeline.num_ranks, np.inf), np.full(timeline.num_ranks, -np.inf)
    np.minimum.at(begin_s, look.rank, timeline.spans.start_s[look.spans])
    np.maximum.at(end_s, look.rank, timeline.spans.end_s[look.spans])
    absent = ~np.isfinite(begin_s)
    begin_s[absent], end_s[absent] = np.nan, np.nan
    return begin_s, end_s


def _lines(look: _Look, place: Ints, first_s: float, tick_s: float) -> list[list[Any]]:
    """Return the meetings that are drawn: moment, the last rank's row, and the rows that met as runs of neighbours."""
    met = look.meetings
    whole = np.flatnonzero(~met.is_pair)
    whole = whole[np.argsort(-met.waited_s[whole], kind="stable")[:_MOST_MEETINGS]]
    lines: list[list[Any]] = []
    for each in sorted(whole.tolist(), key=lambda each: float(met.latest_s[each])):
        rows = np.unique(place[look.rank[met.number == each]])
        rows = rows[rows != NONE]
        if len(rows) > 1:
            moment = round((float(met.latest_s[each]) - first_s) / tick_s)
            runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
            came = int(place[look.rank[met.last[each]]])
            lines.append([moment, came, [[int(run[0]), int(run[-1])] for run in runs]])
    return lines


def _rank(timeline: StepTimeline, index: int, named: Sequence[int]) -> Json:
    rank = timeline.ranks[index]
    place = f"stage {rank.stage} · replica {rank.data_rank}" if timeline.is_pipeline else ""
    return {"rank": rank.rank, "place": place, "named": rank.rank in named}


def _first(timeline: StepTimeline, steps: list[int]) -> int:
    """Return which scene is shown first: the median step."""
    if steps == [NONE]:
        return 0
    frame_s = frames(timeline)
    return int(np.argmin(np.abs(frame_s[steps] - np.nanmedian(frame_s))))


def _remarks(timeline: StepTimeline, shown: Ints, scenes: list[Json], *, aligned: bool) -> list[str]:
    remarks = []
    if len(shown) < timeline.num_ranks:
        remarks.append(
            f"{len(shown)} of {timeline.num_ranks:,} ranks are drawn: those of the verdict, those that others waited "
            "for, and an even sample"
        )
    if timeline.num_steps > len(scenes) and scenes[0]["step"] is not None:
        remarks.append(
            f"{len(scenes)} of {timeline.num_steps:,} steps are drawn: the median one, the slowest one and neighbours"
        )
    joined_s = max(scene["slice"] for scene in scenes)
    if joined_s > 0:
        remarks.append(f"spans shorter than {joined_s * 1e6:.3g} \u00b5s are joined with their neighbours")
    if timeline.num_ranks > 1 and not aligned:
        remarks.append("clocks are not aligned: each rank is drawn from its own begin, and nothing across ranks")
    elif timeline.num_ranks > 1 and timeline.clock_error_s > 0:
        remarks.append(f"clocks agree to {timeline.clock_error_s * 1e6:.3g} \u00b5s")
    if Signal.ARRIVALS in timeline.unknown:
        remarks.append(f"waiting cannot be told from transfer: {timeline.unknown[Signal.ARRIVALS]}")
    return remarks
