"""Pace per worker, and what devices did: a heat map of stages by replicas for pipelines, bars otherwise.

A worker's pace is the time its compute takes over that of its peers, per unit of work where work is known; 1 is as
they are. Of many workers the slowest are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from gscalar.diagnosis.seen import Seen
from gscalar.model.timeline import DeviceUse, StepTimeline
from gscalar.views.reporting.accounts import piece, scale, swatch
from gscalar.views.reporting.markup import Markup, element, join
from gscalar.views.reporting.words import NOT_KNOWN, share, times

MOST_BARS: Final = 32
MOST_COLUMNS: Final = 32
MOST_DEVICES: Final = 32
_SHADES: Final = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0)  # a cell is darker from each of these on


def pace_part(timeline: StepTimeline, named: Sequence[int]) -> Markup:
    """Return how fast each worker computes; a sentence with the reason where it is not known."""
    seen = Seen.of(timeline)
    if seen.replay is None:
        return element("p", f"Not known: {seen.why_no_replay}.", class_="quiet")
    if seen.pace.shape[1] < 2:
        return element("p", "Not known: a worker's pace is against its peers, and there is none.", class_="quiet")
    unit = f" per {timeline.work_unit or 'unit of work'}" if seen.work is not None else ""
    said = f"Median over the steps of the compute time{unit} over that of the peers: 1.00 is as they are."
    draw = _heat_map if seen.pace.shape[0] > 1 else _pace_bars
    return join(element("p", said, class_="quiet"), draw(seen, named))


def _heat_map(seen: Seen, named: Sequence[int]) -> Markup:
    pace, last = seen.pace, seen.last_share
    stages = sorted({each.stage for each in seen.timeline.ranks})
    replicas = sorted({each.data_rank for each in seen.timeline.ranks})
    columns = np.array_split(np.arange(len(replicas)), min(len(replicas), MOST_COLUMNS))
    head = element(
        "tr",
        element("th", "stage \\ replica", scope="col"),
        *(element("th", _span(replicas[each[0]], replicas[each[-1]]), scope="col") for each in columns),
    )
    rows = []
    for at, stage in enumerate(stages):
        cells = []
        for members in columns:
            slowest = int(members[pace[at, members].argmax()])
            rank = seen.rank_of(at, slowest)
            cells.append(_cell(rank, float(pace[at, slowest]), float(last[at, slowest]), rank in named))
        rows.append(element("tr", element("th", f"stage {stage}", scope="row"), *cells))
    several = len(columns) < len(replicas)
    note = element("p", "Each cell is the slowest of several replicas.", class_="quiet") if several else None
    return join(
        element("div", element("table", element("thead", head), element("tbody", *rows), class_="heat"), class_="wide"),
        note,
    )


def _cell(rank: int, pace: float, last: float, named: bool) -> Markup:
    shade = sum(pace >= each for each in _SHADES)
    title = f"rank {rank}: {times(pace)} of its peers; the last of them in {share(last)} of the steps"
    return element("td", "\u25b2 " if named else None, f"{pace:.2f}", class_=f"heat-{shade}", title=title)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}\u2013{last}"


def _pace_bars(seen: Seen, named: Sequence[int]) -> Markup:
    pace, last = seen.pace[0], seen.last_share[0]
    chosen = np.arange(len(pace))
    if len(pace) > MOST_BARS:
        chosen = np.argsort(-pace, kind="stable")[:MOST_BARS]
    longest = max(float(pace.max()), 1.0)
    rows = []
    for at in chosen.tolist():
        rank = seen.rank_of(0, at)
        mark = rank in named
        said = f"{times(float(pace[at]))}, last in {share(float(last[at]))} of steps"
        drawing = element(
            "svg",
            element("rect", width=f"{100 * pace[at] / longest:.4g}%", y=4, height=10, class_=f"pace{' named' * mark}"),
            element("line", x1=f"{100 / longest:.4g}%", x2=f"{100 / longest:.4g}%", y1=0, y2=18, class_="measured"),
            role="img", aria_label=f"rank {rank}: {said}", width="100%", height=18,
        )  # fmt: skip
        label = element("span", "\u25b2 " if mark else None, f"rank {rank}", class_="label named" if mark else "label")
        rows.append(element("div", label, drawing, element("span", said, class_="said"), class_="bar paced"))
    many = len(pace) > len(chosen)
    note = element("p", f"The slowest {len(chosen)} of {len(pace):,} ranks.", class_="quiet") if many else None
    return join(element("div", *rows, class_="bars"), note)


def device_bars(timeline: StepTimeline) -> Markup:
    """Return what each device did from its first operation to its last, as stacked bars."""
    devices = timeline.devices[:MOST_DEVICES]
    longest_s = max((each.span_s for each in devices), default=0.0)
    if not longest_s > 0:
        return element("p", "Not known: no device did anything.", class_="quiet")
    rows = []
    for each in devices:
        parts = split_of(each)
        pieces, at_s = [], 0.0
        for kind, said, seconds in parts:
            pieces.append(piece(kind, said, at_s, seconds, longest_s, each.span_s))
            at_s += seconds
        label = f"rank {timeline.ranks[each.rank].rank} \u00b7 device {each.device}"
        told = ", ".join(f"{said} {share(seconds / each.span_s)}" for _, said, seconds in parts)
        bar = element("svg", *pieces, role="img", aria_label=f"{label}: {told}", width="100%", height=18)
        rows.append(element("div", element("span", label, class_="label"), bar, class_="bar"))
    seen = {kind: said for each in devices for kind, said, _ in split_of(each)}
    legend = [element("span", swatch(kind), " ", said) for kind, said in seen.items()]
    many = len(timeline.devices) - len(devices)
    note = element("p", f"{many} more devices are not drawn.", class_="quiet") if many else None
    return join(element("p", *legend, class_="legend"), element("div", *rows, class_="bars"), scale(longest_s), note)


def split_of(use: DeviceUse) -> list[tuple[str, str, float]]:
    """Return kind, words and seconds of what a device did; they sum to its span. Idle time says why, if known."""
    parts = [
        ("compute", "compute alone", use.compute_s - use.overlap_s),
        ("overlap", "compute beside communication", use.overlap_s),
        ("exposed_communication", "communication alone", use.exposed_s),
        ("h2d", "copies alone", use.busy_s - use.compute_s - use.exposed_s),
    ]
    idle = (("launch", use.idle_launch_s), ("queued", use.idle_queued_s), ("other", use.idle_other_s))
    if all(math.isfinite(seconds) for _, seconds in idle):
        parts += [
            ("idle-launch", "idle: launched late", use.idle_launch_s),
            ("idle-queued", "idle: between queued work", use.idle_queued_s),
            ("unknown", "idle: cause not known", use.idle_other_s),
        ]
    else:
        parts.append(("unknown", f"idle: cause {NOT_KNOWN}", use.idle_s))
    return [(kind, said, seconds) for kind, said, seconds in parts if seconds > 1e-6 * use.span_s]
