"""The spans that a timeline is drawn from: the phases of steps on the host's lane, their collectives on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from gscalar.model.spans import CollectiveKind, SpanKind
from gscalar.model.timeline import NONE, Activity, Floats, Ints, Lane, Spans
from gscalar.observation.collectives import GRADIENTS
from gscalar.views.step_columns import Columns, kind_name

_ACTIVITIES: Final = {
    SpanKind.DATA_WAIT: Activity.DATA_WAIT,
    SpanKind.H2D: Activity.H2D,
    SpanKind.FORWARD: Activity.FORWARD,
    SpanKind.BACKWARD: Activity.BACKWARD,
    SpanKind.COMMUNICATION: Activity.COMMUNICATION,
    SpanKind.OPTIMIZER: Activity.OPTIMIZER,
    SpanKind.CHECKPOINT: Activity.CHECKPOINT,
    SpanKind.EVALUATION: Activity.EVALUATION,
    SpanKind.GC: Activity.GC,
    SpanKind.HOST: Activity.HOST,
}
_EXCHANGES: Final = {
    CollectiveKind.ALL_REDUCE: Activity.REDUCE_GRADIENTS,
    CollectiveKind.REDUCE_SCATTER: Activity.SCATTER_GRADIENTS,
    CollectiveKind.ALL_GATHER: Activity.GATHER_PARAMETERS,
}


def draw_spans(ranks: Sequence[Columns], seconds: Callable[[Ints], Floats]) -> tuple[Spans, tuple[str, ...]]:
    """Return the spans of these ranks and the names they point to; `seconds` counts from the common origin.

    A collective is drawn from when the rank was ready until it was over.
    """
    names: dict[str, int] = {}
    parts = [part for rank, each in enumerate(ranks) for part in (_phases(rank, each, names), _met(rank, each, names))]
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    start_s, end_s = seconds(columns.pop("start_ns")), seconds(columns.pop("end_ns"))
    num_bytes = np.where(columns["group"] == NONE, np.nan, columns.pop("num_bytes"))
    return Spans.of(len(start_s), start_s=start_s, end_s=end_s, num_bytes=num_bytes, **columns), tuple(names)


def _phases(rank: int, columns: Columns, names: dict[str, int]) -> dict[str, Ints]:
    step, (kind, start_us, duration_us, _) = columns.spans.step, columns.spans.fields.T
    start_ns = columns.begin_ns[step] + 1000 * start_us
    nothing = np.full(len(step), NONE)
    return {
        "rank": np.full(len(step), rank),
        "step": step,
        "lane": np.full(len(step), Lane.HOST),
        "activity": _look_up(kind, {int(each): int(activity) for each, activity in _ACTIVITIES.items()}),
        "name": _look_up(kind, {int(each): _number(names, kind_name(int(each), SpanKind)) for each in np.unique(kind)}),
        "start_ns": start_ns,
        "end_ns": start_ns + 1000 * duration_us,
        "num_bytes": nothing,
        "group": nothing,
        "sequence": nothing,
        "micro": _micro(step, kind),
    }


def _met(rank: int, columns: Columns, names: dict[str, int]) -> dict[str, Ints]:
    step, (kind, group, sequence, num_bytes, ready_us, _, end_us) = (
        columns.collectives.step,
        columns.collectives.fields.T,
    )
    exchanges = _look_up(
        kind, {int(each): int(activity) for each, activity in _EXCHANGES.items()}, Activity.COMMUNICATION
    )
    numbers = {int(each): _number(names, kind_name(int(each), CollectiveKind)) for each in np.unique(kind)}
    return {
        "rank": np.full(len(step), rank),
        "step": step,
        "lane": np.full(len(step), Lane.COMMUNICATION),
        "activity": np.where(group == GRADIENTS, exchanges, Activity.COMMUNICATION),
        "name": _look_up(kind, numbers),
        "start_ns": columns.begin_ns[step] + 1000 * ready_us,
        "end_ns": columns.begin_ns[step] + 1000 * end_us,
        "num_bytes": num_bytes,
        "group": group,
        "sequence": sequence,
        "micro": np.full(len(step), NONE),
    }


def _micro(step: Ints, kind: Ints) -> Ints:
    """Return the micro-batch of forwards and backwards: how many of their kind came before in the step."""
    found = np.full(len(step), NONE)
    for each in (SpanKind.FORWARD, SpanKind.BACKWARD):
        at = np.flatnonzero(kind == each)
        first = np.searchsorted(step[at], step[at])  # rows lie in the order of their steps
        found[at] = np.arange(len(at)) - first
    return found


def _look_up(kinds: Ints, table: dict[int, int], otherwise: int = Activity.OTHER) -> Ints:
    found = np.full(len(kinds), otherwise, np.int64)
    for kind, value in table.items():
        found[kinds == kind] = value
    return found


def _number(names: dict[str, int], name: str) -> int:
    return names.setdefault(name, len(names))
