"""All points of series as CSV or JSON, exactly and in a stream.

A value is written in the shortest form that reads back as the same float64; NaN and infinities as `NaN`, `Infinity`
and `-Infinity`, which in JSON are strings, since it has no number for them. Times are UTC to the nanosecond.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Final

import click
import numpy as np

from gscalar.cli.charts import ChartOptions, find_window
from gscalar.cli.streams import drop_output
from gscalar.state.series import SeriesInfo, SeriesPoints
from gscalar.views.curves import Window
from gscalar.views.metrics import Choice, RunSeries, choose_series, iter_points

COLUMNS: Final = ("run", "kind", "name", "rank", "attempt", "step", "time", "value")

Part = tuple[RunSeries, SeriesInfo, Window]


def print_points(runs: Sequence[RunSeries], choice: Choice, options: ChartOptions, form: str) -> None:
    """Print all points that are asked for, series by series, as `csv` or `json`."""
    parts = list(find_parts(runs, choice, options))
    try:
        for text in csv_batches(parts) if form == "csv" else json_batches(parts):
            click.echo(text, nl=False)
    except BrokenPipeError:
        drop_output()  # whoever read has seen enough


def csv_batches(parts: Sequence[Part]) -> Iterator[str]:
    """Yield a CSV text in pieces, with a header."""
    yield ",".join(COLUMNS) + "\n"
    for run, info, points in _iter_batches(parts):
        start = io.StringIO()
        csv.writer(start, lineterminator="").writerow([run.run_id, info.kind, info.name, info.rank])
        head = start.getvalue()
        rows = zip(points.attempts.tolist(), _steps(info, points, ""), _times(points), _values(points), strict=True)
        yield "".join([f"{head},{attempt},{step},{time},{value}\n" for attempt, step, time, value in rows])


def json_batches(parts: Sequence[Part]) -> Iterator[str]:
    """Yield one JSON array in pieces, an object a line."""
    between = "[\n"
    for run, info, points in _iter_batches(parts):
        facts = {"run": run.run_id, "kind": info.kind, "name": info.name, "rank": info.rank}
        head = json.dumps(facts, ensure_ascii=False)[:-1]
        values = [each if math.isfinite(float(each)) else f'"{each}"' for each in _values(points)]
        rows = zip(points.attempts.tolist(), _steps(info, points, "null"), _times(points), values, strict=True)
        lines = [
            f'{head}, "attempt": {attempt}, "step": {step}, "time": "{time}", "value": {value}}}'
            for attempt, step, time, value in rows
        ]
        yield between + ",\n".join(lines)
        between = ",\n"
    yield "\n]\n" if between == ",\n" else "[]\n"


def find_parts(runs: Sequence[RunSeries], choice: Choice, options: ChartOptions) -> Iterator[Part]:
    """Yield the series and their windows. Raises click.BadParameter where --from or --to is no position."""
    for run in runs:
        for info in choose_series(run.infos, choice):
            axis = options.axis or ("relative" if info.kind == "hardware" else "step")
            yield run, info, find_window(axis, options.begin, options.end, run.origin_ns())


def _iter_batches(parts: Sequence[Part]) -> Iterator[tuple[RunSeries, SeriesInfo, SeriesPoints]]:
    for run, info, window in parts:
        for points in iter_points(run.reader, info, axis=window.axis, begin=window.begin, end=window.end):
            yield run, info, points


def _steps(info: SeriesInfo, points: SeriesPoints, none: str) -> list[str]:
    if info.kind == "hardware":
        return [none] * len(points.steps)
    return [str(each) for each in points.steps.tolist()]


def _times(points: SeriesPoints) -> list[str]:
    texts = np.datetime_as_string(points.times_ns.astype("datetime64[ns]"), unit="ns", timezone="UTC")
    found: list[str] = texts.tolist()
    return found


def _values(points: SeriesPoints) -> list[str]:
    values = points.values.tolist()
    if np.isfinite(points.values).all():
        return [repr(each) for each in values]
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [words.get(text, text) for text in map(repr, values)]
