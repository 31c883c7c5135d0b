"""A run's series: every metric, account and hardware counter with step, time and rank. docs/series.md is the manual."""

from gscalar.state.series.database import reset_damaged
from gscalar.state.series.reading import SeriesReader, open_series
from gscalar.state.series.types import Chart, SeriesInfo, SeriesKey, SeriesPoints

__all__ = [
    "open_series",
    "SeriesReader",
    "SeriesInfo",
    "SeriesPoints",
    "SeriesKey",
    "Chart",
    "reset_damaged",
]
