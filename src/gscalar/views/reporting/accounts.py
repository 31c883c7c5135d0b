"""Accounts as pictures: a stacked bar for each rank (or bin of ranks), and a stacked area over the steps.

What is not known is never drawn as nothing: an account that no rank knows is named with its reason, and the part of a
bar that no known account explains is drawn as unknown. A step in which an account is missing that other steps have is
a gap in the area.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.diagnosis.verdicts import Diagnosis
from gscalar.model.accounts import ACCOUNTS
from gscalar.model.timeline import ACCOUNT_NAMES, Floats, Ints, Signal, StepTimeline
from gscalar.views.reporting.markup import Markup, element, join
from gscalar.views.reporting.words import NOT_KNOWN, duration, share, spelled

Bools = npt.NDArray[np.bool_]
MOST_BARS: Final = 32
MOST_POINTS: Final = 300
_MOST_NAMED: Final = 8
_LEAST_LABELLED: Final = 0.09  # of a bar: room for its share
_LEAST_UNKNOWN: Final = 0.005  # of a step: what is less is rounding
_SIGNAL_OF: Final = {"data_wait": Signal.DATA_WAIT, "checkpoint": Signal.CHECKPOINTS, "gc": Signal.GC,
                     "compute": Signal.COMPUTE, "exposed_communication": Signal.COMMUNICATION}  # fmt: skip


def accounts_table(timeline: StepTimeline, found: Diagnosis) -> Markup:
    """Return the accounts with their mean and what they are: the legend of both pictures."""
    step_s = found.step_mean_s
    rows = []
    for name in ACCOUNT_NAMES:
        seconds = found.accounts.get(name)
        if seconds is None:
            shown = [element("td", NOT_KNOWN, class_="unknown", colspan=2), element("td", _why(timeline, name))]
        else:
            part = share(seconds / step_s) if step_s else NOT_KNOWN
            shown = [
                element("td", duration(seconds)),
                element("td", part),
                element("td", ACCOUNTS[name].replace("`", "")),
            ]
        rows.append(element("tr", element("th", swatch(name), " ", spelled(name), scope="row"), *shown))
    head = element("tr", *(element("th", each, scope="col") for each in ("account", "mean", "of step", "what it is")))
    return element("table", element("thead", head), element("tbody", *rows), class_="accounts")


def swatch(name: str) -> Markup:
    """Return a small patch in the colour of an account."""
    return element(
        "svg", element("rect", width="100%", height="100%", class_=f"k-{name}"), class_="swatch", aria_hidden="true"
    )


def rank_bars(timeline: StepTimeline, named: Sequence[int]) -> Markup:
    """Return a stacked bar of the mean step of each rank; of many ranks, of bins of neighbours."""
    step_s, accounts = _mean_steps(timeline)
    bins = _bins(timeline, named)
    sums = [(label, mark, *_bin(step_s[members], accounts[members])) for label, mark, members in bins]
    longest_s = max((length for *_, length, _ in sums if np.isfinite(length)), default=0.0)
    if not longest_s > 0:
        return element("p", "No rank's steps are known.", class_="quiet")
    rows = [_bar(label, mark, length, parts, longest_s) for label, mark, length, parts in sums]
    many = timeline.num_ranks > MOST_BARS
    title = element("h3", f"Mean step of {timeline.num_ranks:,} ranks, in bins" if many else "Mean step of each rank")
    return join(title, element("div", *rows, class_="bars"), scale(longest_s))


def scale(longest_s: float) -> Markup:
    """Return what stands below bars: zero, the middle and the end."""
    marks = (element("span", duration(longest_s * part) if part else "0") for part in (0, 0.5, 1))
    return element("div", element("span"), element("div", *marks, class_="scale"), class_="bar axis")


def _mean_steps(timeline: StepTimeline) -> tuple[Floats, Floats]:
    """Return each rank's mean step and mean accounts, `(num_ranks,)` and `(num_ranks, num_accounts)`."""
    return mean_known(timeline.step_s, 1), mean_known(timeline.accounts, 1)


def mean_known(values: Floats, axis: int) -> Floats:
    """Return the mean of what is known along an axis; NaN where nothing is."""
    known = np.isfinite(values)
    num = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    mean: Floats = np.divide(total, num, out=np.full(total.shape, np.nan), where=num > 0)
    return mean


def _bins(timeline: StepTimeline, named: Sequence[int]) -> list[tuple[str, bool, list[int]]]:
    """Return label, whether the verdict names it, and members of each bar."""
    ranks = timeline.ranks
    if len(ranks) <= MOST_BARS:
        return [(f"rank {each.rank}", each.rank in named, [index]) for index, each in enumerate(ranks)]
    chosen = set(named[:_MOST_NAMED])
    bars = [(f"rank {each.rank}", True, [index]) for index, each in enumerate(ranks) if each.rank in chosen]
    for members in np.array_split(np.arange(len(ranks)), MOST_BARS):
        first, last = ranks[members[0]].rank, ranks[members[-1]].rank
        bars.append((f"{first:,}\u2013{last:,}", False, members.tolist()))
    return bars


def _bin(step_s: Floats, accounts: Floats) -> tuple[float, Floats]:
    return float(mean_known(step_s, 0)), mean_known(accounts, 0)


def _bar(label: str, mark: bool, length_s: float, parts_s: Floats, longest_s: float) -> Markup:
    name = element("span", "\u25b2 " if mark else None, label, class_="label named" if mark else "label")
    if not np.isfinite(length_s):
        return element("div", name, element("span", NOT_KNOWN, class_="unknown"), class_="bar")
    pieces, at = [], 0.0
    for account, seconds in zip(ACCOUNT_NAMES, parts_s.tolist(), strict=True):
        if np.isfinite(seconds) and seconds > 0:
            pieces.append(piece(account, spelled(account), at, seconds, longest_s, length_s))
            at += seconds
    if length_s - at > _LEAST_UNKNOWN * length_s:
        pieces.append(piece("unknown", NOT_KNOWN, at, length_s - at, longest_s, length_s))
    said = ", ".join(
        f"{spelled(account)} {duration(seconds)}"
        for account, seconds in zip(ACCOUNT_NAMES, parts_s.tolist(), strict=True)
        if np.isfinite(seconds) and seconds >= 0.01 * length_s
    )
    bar = element(
        "svg", *pieces, role="img", aria_label=f"{label}: {duration(length_s)} a step; {said}", height=18, width="100%"
    )
    return element("div", name, bar, class_="bar")


def piece(kind: str, said: str, at_s: float, seconds: float, longest_s: float, whole_s: float) -> Markup:
    """Return one part of a stacked bar; `whole_s` is the bar, `longest_s` the width of the drawing."""
    part = seconds / whole_s
    label = (
        element("text", f"{100 * part:.0f} %", x="50%", y=13, class_=f"on on-{kind}")
        if part >= _LEAST_LABELLED
        else None
    )
    return element(
        "svg",
        element("title", f"{said}: {duration(seconds)}, {share(part)}"),
        element("rect", width="100%", height="100%", class_=f"k-{kind}"),
        label,
        x=f"{100 * at_s / longest_s:.4g}%", width=f"{100 * seconds / longest_s:.4g}%", height=18,
    )  # fmt: skip


def step_area(timeline: StepTimeline, marks: Sequence[int]) -> Markup:
    """Return the mean accounts over the steps, stacked; `marks` are the numbers of steps that the timeline draws."""
    num = timeline.num_steps
    edges = np.linspace(0, num, min(num, MOST_POINTS) + 1).astype(np.int64)
    widths = np.diff(edges)
    total_s = np.add.reduceat(mean_known(timeline.step_s, 0), edges[:-1]) / widths
    top_s = float(np.max(total_s, initial=0.0, where=np.isfinite(total_s)))
    if not top_s > 0:
        return element("p", "No step's length is known.", class_="quiet")
    parts_s = np.add.reduceat(mean_known(timeline.accounts, 0), edges[:-1], 0) / widths[:, None]
    lines = [
        element("rect", x=float(at), y=0, width=0.0025 * num, height=1, class_="drawn")
        for at in np.flatnonzero(np.isin(timeline.steps, marks))
    ]
    several = f", each point the mean of up to {int(widths.max())} steps" if widths.max() > 1 else ""
    first, last = f"step {timeline.steps[0]}", f"step {timeline.steps[-1]}"
    area = element(
        "svg", *_layers(parts_s, total_s, edges, top_s), *lines, viewBox=f"0 0 {num} 1", preserveAspectRatio="none",
        role="img", aria_label=f"Mean accounts from {first} to {last}, up to {duration(top_s)}{several}", class_="area",
    )  # fmt: skip
    return element(
        "div",
        element("div", element("span", duration(top_s)), element("span", "0"), class_="upright"),
        element("div", area, element("div", element("span", first), element("span", last), class_="scale")),
        class_="areas",
    )


def _layers(parts_s: Floats, total_s: Floats, edges: Ints, top_s: float) -> list[Markup]:
    """Return the areas of the accounts that are known, and that of what is not."""
    known = np.flatnonzero(np.isfinite(parts_s).any(axis=0))
    stacked = np.column_stack([np.zeros(len(parts_s)), np.cumsum(parts_s[:, known], axis=1)])
    sound: Bools = np.logical_and.reduce(np.isfinite(stacked), axis=1)
    layers = [
        _layer(f"k-{ACCOUNT_NAMES[account]}", spelled(ACCOUNT_NAMES[account]), path)
        for at, account in enumerate(known.tolist())
        if (path := _outline(stacked[:, at], stacked[:, at + 1], sound, edges, top_s))
    ]
    low_s = np.where(sound, stacked[:, -1], 0.0)
    unknown: Bools = np.isfinite(total_s) & (total_s - low_s > _LEAST_UNKNOWN * total_s)
    return [*layers, _layer("k-unknown", NOT_KNOWN, _outline(low_s, total_s, unknown, edges, top_s))]


def _layer(kind: str, said: str, path: str) -> Markup:
    return element("path", element("title", said), d=path, class_=kind)


def _outline(low: Floats, high: Floats, shown: Bools, edges: Ints, top: float) -> str:
    """Return the path of an area whose points are as wide as their bins of steps, in whole runs of what is shown."""
    path = []
    breaks = np.flatnonzero(np.diff(np.r_[False, shown, False].astype(np.int8)))
    for first, end in zip(breaks[::2].tolist(), breaks[1::2].tolist(), strict=True):
        upper = [f"{edges[i]} {1 - high[i] / top:.4f}H{edges[i + 1]}" for i in range(first, end)]
        lower = [f"{edges[i + 1]} {1 - low[i] / top:.4f}H{edges[i]}" for i in reversed(range(first, end))]
        path.append(f"M{'L'.join(upper)}L{'L'.join(lower)}Z")
    return "".join(path)


def _why(timeline: StepTimeline, name: str) -> str:
    signal = _SIGNAL_OF.get(name)
    return timeline.unknown.get(signal, "the source does not have it") if signal else "the source does not have it"
