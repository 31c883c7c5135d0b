"""From the rows of the catalog's tables to runs: the same whoever has read the rows, and with no database loaded."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from gscalar.state.catalog.rows import (
    AttemptRow,
    CheckpointRow,
    FailureRow,
    MetricSummary,
    NoteRow,
    ParamRow,
    RunSummary,
)

EXACT: Final = struct.Struct("<3d")


class Row(Protocol):
    """A row of a table, by the names of its columns."""

    def __getitem__(self, name: str, /) -> Any: ...


# Gives the rows of a table whose column (the second word) has one of the ids asked for, in the order of some columns.
Select = Callable[[str, str, Sequence[str]], Iterable[Row]]

# The parts of a run that are tables of their own, and what their rows are ordered by.
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "attempts": ("attempt",),
    "params": ("key",),
    "tags": ("key",),
    "run_metrics": ("name",),
    "checkpoints": ("step", "time_ns", "path"),
    "failures": ("position",),
    "notes": ("position",),
}
_FIELDS: Final = {"run_metrics": "metrics"}  # of RunSummary, where it is not named as the table
HEAD: Final = tuple(
    each.name
    for each in dataclasses.fields(RunSummary)
    if each.name not in {_FIELDS.get(table, table) for table in PARTS}
)


def assemble_runs(select: Select) -> dict[str, RunSummary]:
    """Return the runs of the ids that `select` gives rows of, by id."""
    parts = {table: _by_run(select(table, "run_id", order)) for table, order in PARTS.items()}

    def rows(table: str, run_id: str) -> list[Row]:
        return parts[table].get(run_id, [])

    return {
        head["id"]: RunSummary(
            **{name: head[name] for name in HEAD},
            attempts=tuple(make_row(AttemptRow, each) for each in rows("attempts", head["id"])),
            params=tuple(make_row(ParamRow, each) for each in rows("params", head["id"])),
            tags={each["key"]: each["value"] for each in rows("tags", head["id"])},
            metrics={each["name"]: make_metric(each) for each in rows("run_metrics", head["id"])},
            checkpoints=tuple(make_row(CheckpointRow, each) for each in rows("checkpoints", head["id"])),
            failures=tuple(make_row(FailureRow, each) for each in rows("failures", head["id"])),
            notes=tuple(make_row(NoteRow, each) for each in rows("notes", head["id"])),
        )
        for head in select("runs", "id", ())
    }


def make_row(kind: Any, row: Row, **more: Any) -> Any:
    """Return the value of this class whose fields have the names of columns."""
    names = (each.name for each in dataclasses.fields(kind) if each.name not in more)
    return kind(**{name: row[name] for name in names}, **more)


def make_metric(row: Row) -> MetricSummary:
    """Return the summary with its exact numbers."""
    last, least, greatest = EXACT.unpack(row["exact"])
    return MetricSummary(
        count=row["count"],
        num_nan=row["num_nan"],
        last_step=row["last_step"],
        last=last,
        least=least,
        greatest=greatest,
    )


def _by_run(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["run_id"], []).append(row)
    return found
