"""A series as a line on a plot: positions and values in order, with a gap where a value is not finite.

The line comes from the chart columns of the store, each by its first, least, greatest and last point at their true
positions, so that it passes through the same dots as a line through all points would (M4: Jugel et al., VLDB 2014).

Smoothing is the exponential moving average with bias correction, over all finite points from the first that is drawn,
not over what is left after thinning:

    s_t = w * s_(t-1) + (1 - w) * x_t,   s_0 = 0;   drawn is s_t / (1 - w^t)

(Kingma and Ba, Adam, 2015, section 3, where the same correction takes away the pull of the start at zero). It goes
through memory in windows: within 64 points it is one product with a triangular matrix, and only the last value of each
64 is carried on.

Limits. Of a column in which a value is infinite the summary does not tell the finite extremes; the first 64 such
columns are read point by point, further ones lack their extremes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gscalar.state.series import Chart, SeriesInfo, SeriesReader
from gscalar.views.metrics import iter_points

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MOST_OPENED: Final = 64
_BLOCK: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A part of an axis, both ends included: steps, or nanoseconds on an axis of time."""

    axis: str  # step | time
    begin: int | None = None
    end: int | None = None


class Line(NamedTuple):
    """Points to be joined in this order; a value that is NaN is a gap."""

    at: Ints
    values: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """What a plot shows of one series."""

    info: SeriesInfo
    line: Line
    smoothed: Line | None
    nan_at: Ints  # where, to a column, values were no finite numbers
    posinf_at: Ints
    neginf_at: Ints
    count: int  # of the window, as the following
    num_nan: int
    num_posinf: int
    num_neginf: int


def load_curve(reader: SeriesReader, info: SeriesInfo, window: Window, *, columns: int, smooth: float = 0.0) -> Curve:
    """Return the series in the window, thinned to columns; smoothed too where the weight `smooth` is above 0."""
    key = (info.kind, info.name, info.rank)
    chart = reader.chart(*key, axis=window.axis, begin=window.begin, end=window.end, columns=columns)
    middle = chart.begin + (chart.end - chart.begin) // 2
    return Curve(
        info=info,
        line=trace(chart, _open_infinite(reader, info, chart)),
        smoothed=_load_smoothed(reader, info, window, chart, columns, smooth) if smooth > 0 else None,
        nan_at=middle[chart.num_nan > 0],
        posinf_at=middle[chart.num_posinf > 0],
        neginf_at=middle[chart.num_neginf > 0],
        count=int(chart.count.sum()),
        num_nan=int(chart.num_nan.sum()),
        num_posinf=int(chart.num_posinf.sum()),
        num_neginf=int(chart.num_neginf.sum()),
    )


# ---- from columns to a line


def trace(chart: Chart, opened: dict[int, Line] | None = None) -> Line:
    """Return the line through the points of the columns; `opened` has the points of some of them."""
    if chart.exact:
        return Line(chart.begin, _only_finite(chart.first))
    rises = chart.least_at <= chart.greatest_at
    at = np.stack(
        [
            chart.begin,
            np.minimum(chart.least_at, chart.greatest_at),
            np.maximum(chart.least_at, chart.greatest_at),
            chart.end,
        ],
        axis=1,
    )
    values = np.stack(
        [
            chart.first,
            np.where(rises, chart.least, chart.greatest),
            np.where(rises, chart.greatest, chart.least),
            chart.last,
        ],
        axis=1,
    )
    for column, line in (opened or {}).items():
        at[column], values[column] = line
    return Line(at.ravel(), _only_finite(values.ravel()))


def _open_infinite(reader: SeriesReader, info: SeriesInfo, chart: Chart) -> dict[int, Line]:
    """Return first, extremes and last of the columns in which infinities hide the finite extremes."""
    if chart.exact:
        return {}
    found = {}
    hiding = np.flatnonzero((chart.num_posinf > 0) | (chart.num_neginf > 0))[:_MOST_OPENED].tolist()
    for column in hiding:
        begin, end = int(chart.begin[column]), int(chart.end[column])
        points = reader.points(info.kind, info.name, info.rank, axis=chart.axis, begin=begin, end=end)
        at = points.steps if chart.axis == "step" else points.times_ns
        finite = np.flatnonzero(np.isfinite(points.values))
        if len(finite):
            values = points.values[finite]
            extremes = sorted((finite[values.argmin()], finite[values.argmax()]))
            places = np.array([0, *extremes, len(at) - 1])
            found[column] = Line(at[places], points.values[places])
    return found


def _only_finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


# ---- smoothing


@dataclass(slots=True)
class Average:
    """An exponential moving average between two stretches of points."""

    weight: float
    total: float = 0.0
    count: int = 0

    def take(self, values: Floats) -> Floats:
        """Return the average after each of the next values, which are finite."""
        num = len(values)
        if not num:
            return values
        powers = self.weight ** np.arange(_BLOCK + 1)
        lags = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
        kernel = np.where(lags >= 0, (1 - self.weight) * powers[np.maximum(lags, 0)], 0.0)
        within = np.pad(values, (0, -num % _BLOCK)).reshape(-1, _BLOCK) @ kernel.T
        carried = np.empty(len(within))
        for place, last in enumerate(within[:, -1].tolist()):
            carried[place] = self.total
            self.total = self.total * powers[-1] + last
        totals = (within + carried[:, None] * powers[1:]).ravel()[:num]
        counts = self.count + np.arange(1, num + 1)
        self.total, self.count = float(totals[-1]), self.count + num
        found: Floats = totals / -np.expm1(counts * math.log(self.weight))
        return found


def _load_smoothed(
    reader: SeriesReader, info: SeriesInfo, window: Window, chart: Chart, columns: int, weight: float
) -> Line:
    if not len(chart.begin):
        return Line(chart.begin, chart.first)
    batches = iter_points(reader, info, axis=window.axis, begin=window.begin, end=window.end)
    lines = smooth_points(
        ((each.steps if window.axis == "step" else each.times_ns, each.values) for each in batches), weight
    )
    edges = np.linspace(int(chart.begin[0]), int(chart.end[-1]), columns + 1)[1:-1]
    thinned = [thin(line, edges) for line in lines]
    return Line(np.concatenate([each.at for each in thinned]), np.concatenate([each.values for each in thinned]))


def smooth_points(batches: Iterable[tuple[Ints, Floats]], weight: float) -> Iterator[Line]:
    """Yield the average at each finite point of consecutive batches; points that are not finite are left out."""
    average = Average(weight)
    for at, values in batches:
        finite = np.isfinite(values)
        yield Line(at[finite], average.take(values[finite]))


def thin(line: Line, edges: Floats) -> Line:
    """Return the first, least, greatest and last point of each column between ascending edges, in their order."""
    if not len(line.at):
        return line
    bins = np.searchsorted(edges, line.at, "right")
    starts = np.flatnonzero(np.append(True, bins[1:] != bins[:-1]))
    ends = np.append(starts[1:], len(bins))
    places = [starts, ends - 1]
    for pick in (np.minimum, np.maximum):
        extreme = np.repeat(pick.reduceat(line.values, starts), ends - starts)
        candidates = np.where(line.values == extreme, np.arange(len(bins)), len(bins))
        places.append(np.minimum.reduceat(candidates, starts))
    kept = np.unique(np.concatenate(places))
    return Line(line.at[kept], line.values[kept])
