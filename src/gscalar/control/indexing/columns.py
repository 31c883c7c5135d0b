"""Folds many logged values into summaries at once.

A long run logs millions of values, and an interpreted step for each is most of the time that a catalog takes to
build. So the packed values of one batch are joined by their key set, and each metric is a strided slice of them, of
which `min` and `max` take the extremes. Count, least, greatest and last are exact whatever the batches are.
Sums are not: floating-point addition depends on the order, so sums are taken event by event elsewhere.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

from gscalar.model.events import Step
from gscalar.state.catalog.rows import MetricSummary


class Columns:
    """The values of one batch, in the order in which they were logged."""

    def __init__(self) -> None:
        self._place = 0
        self._sets: dict[tuple[str, ...], _KeySet] = {}
        self._steps: list[Step] = []
        self._step_place = 0

    def add_points(self, names: tuple[str, ...], step: int, values: bytes) -> None:
        """Take the packed float64 of one `log` call, one for each name."""
        self._place += 1
        found = self._sets.get(names)
        if found is None:
            found = self._sets[names] = _KeySet()
        found.chunks.append(values)
        found.last_step = step
        found.place = self._place

    def add_step(self, step: Step) -> None:
        """Take the metrics that an optimizer step stands for (`gscalar.model.metrics`)."""
        self._place += 1
        self._steps.append(step)
        self._step_place = self._place

    def fold_into(self, metrics: dict[str, MetricSummary]) -> None:
        """Add all values to the summaries."""
        # A name may be in several key sets: what was logged last comes last.
        parts: list[tuple[int, int, Iterable[tuple[str, Sequence[float]]]]] = [
            (found.place, found.last_step, found.columns(names)) for names, found in self._sets.items()
        ]
        if self._steps:
            parts.append((self._step_place, self._steps[-1].step, step_columns(self._steps)))
        for _, last_step, columns in sorted(parts, key=lambda part: part[0]):
            for name, values in columns:
                if len(values):
                    new = summarize_values(values, last_step)
                    known = metrics.get(name)
                    metrics[name] = new if known is None else known.then(new)


class _KeySet:
    __slots__ = ("chunks", "last_step", "place")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.last_step = 0
        self.place = 0

    def columns(self, names: tuple[str, ...]) -> Iterable[tuple[str, Sequence[float]]]:
        values = array("d", b"".join(self.chunks))
        if sys.byteorder == "big":
            values.byteswap()
        return ((name, values[index :: len(names)]) for index, name in enumerate(names))


def step_columns(steps: Sequence[Step]) -> Iterable[tuple[str, Sequence[float]]]:
    """Return the metrics of steps, each with its values in order; rates only of steps that have one."""
    return (
        ("train/loss", [step.loss for step in steps]),
        ("train/lr", [step.lr for step in steps]),
        ("train/step_s", [step.duration_s for step in steps]),
        ("train/tokens_per_s", [s.tokens / s.duration_s for s in steps if s.tokens > 0 and s.duration_s > 0]),
        ("train/samples_per_s", [s.samples / s.duration_s for s in steps if s.samples > 0 and s.duration_s > 0]),
    )


def summarize_values(values: Sequence[float], last_step: int) -> MetricSummary:
    """Return the summary of at least one value, in the order in which they were logged."""
    numbers = values
    total = sum(values)
    if total != total:  # there is a NaN, or both infinities
        numbers = [value for value in values if value == value]
    return MetricSummary(
        count=len(values),
        num_nan=len(values) - len(numbers),
        last_step=last_step,
        last=values[-1],
        least=min(numbers, default=MetricSummary().least),
        greatest=max(numbers, default=MetricSummary().greatest),
    )
