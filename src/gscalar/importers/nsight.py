"""SQLite exports of Nsight Systems (`nsys export --type sqlite`): what devices did, and the steps that NVTX marks.

Kernels, copies and sets are in tables of CUPTI's activities, with the device, a name by number, and the call that
issued them by process and correlation number. Times are nanoseconds of one clock from the session's start, and may
be negative. Each process that used a device is a rank; which rank of the training it was is not in the file, so they
are numbered by their first device.

Nothing in such a file is a step. Ranges of NVTX are taken for steps where their names say so (`nvtx`), one thread has
at least two of them, and they do not overlap. In the same way ranges of that thread are taken for waits for a batch.
Accounts of a step are those of `device_trace`.

Tables: Nsight Systems User Guide, "SQLite Schema Reference".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from gscalar.base.errors import UserError
from gscalar.importers.device_trace import DeviceOperations, as_timeline
from gscalar.importers.nvtx import Range, marked, recognised
from gscalar.model.timeline import Activity, Floats, Ints, Rank, Signal, StepTimeline

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES: Final = "NVTX_EVENTS"
_TEXTS: Final = "StringIds"
_COPY_NAMES: Final = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
_HOST_TO_DEVICE: Final = 1  # of copyKind
_SET_NAME: Final = -1  # copies and sets have numbers below those of texts
_FIRST_COPY_NAME: Final = -2
_PROCESS_BITS: Final = -(1 << 24)  # a globalTid without its thread is the globalPid
_NO_PROCESS: Final = 0
_ABSENT: Final = -1
_NO_NAME: Final = -1000
_UNKNOWN: Final = {
    Signal.ARRIVALS: "kernels say when a device began a collective, not which collective of another device it was",
    Signal.QUEUE: "an Nsight Systems export does not say how full the loader's queue is",
    Signal.WORK: "an Nsight Systems export does not say how many samples a step had",
    Signal.GC: "garbage collection is not told apart",
    Signal.CHECKPOINTS: "checkpoints are not told apart",
    Signal.MEMORY_BANDWIDTH: "counters of the devices are not read",
}
Columns = Mapping[str, set[str]]  # of each table that is read, and that is there


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one or more tables of activities, as columns."""

    start_ns: Ints
    end_ns: Ints
    device: Ints
    process: Ints
    correlation: Ints
    name: Ints
    num_bytes: Ints  # -1: not known

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, chosen: npt.NDArray[np.generic]) -> Table:
        """Return the chosen rows."""
        return Table(*(getattr(self, name)[chosen] for name in Table.__dataclass_fields__))

    @classmethod
    def joined(cls, parts: list[Table]) -> Table:
        """Return the rows of all parts."""
        none = [np.empty(0, np.int64)]
        return cls(
            *(np.concatenate(none + [getattr(each, name) for each in parts]) for name in cls.__dataclass_fields__)
        )


def read_nsight(path: Path) -> StepTimeline:
    """Return the timeline of an SQLite export. Raises `UserError` trace-damaged.

    The file is opened as one that nobody changes, so that nothing is written beside it.
    """
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        try:
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            return _read(path, connection)
        finally:
            connection.close()
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:  # a column may hold anything
        raise _damaged(path, str(error)) from error


def _read(path: Path, connection: sqlite3.Connection) -> StepTimeline:
    columns = _columns(connection)
    if not columns.keys() & {_KERNELS, _COPIES, _SETS, _RANGES}:
        raise _damaged(path, "it has no activities of CUPTI and no ranges of NVTX")
    texts: dict[int, str] = dict(connection.execute(f"SELECT id, value FROM {_TEXTS}")) if _TEXTS in columns else {}
    notes: list[str] = []
    table, names, activities = _activities(connection, columns, texts)
    sound = table.end_ns >= table.start_ns
    if not sound.all():
        notes.append(f"{int((~sound).sum())} operations with a negative duration are left out")
        table = table.at(sound)
    ranges = _ranges(connection, columns, texts)
    if not len(table) and not ranges:
        raise _damaged(path, "it has no operations of devices, and no ranges of NVTX that mark steps")
    origin_ns = min([*([int(table.start_ns.min())] if len(table) else []), *(each.start_ns for each in ranges)])
    processes = _processes(table, ranges)
    launch_s = _launches(connection, columns, table, origin_ns)
    operations = [
        device
        for rank, process in enumerate(processes)
        for device in _devices(table, table.process == process, rank, names, activities, launch_s, origin_ns)
    ]
    of_rank = [
        [each for each in ranges if process in (_NO_PROCESS, each.thread & _PROCESS_BITS)] for process in processes
    ]
    steps, waits, why_none = marked(of_rank, origin_ns)
    if len(processes) > 1:
        notes.append(f"{len(processes)} processes are taken for ranks in the order of their devices")
    return as_timeline(
        source="nsight", name=path.name, ranks=[Rank(rank=rank, clock_error_s=0.0) for rank in range(len(processes))],
        operations=operations, steps=steps, waits=waits,
        unknown=_unknown(launch_s is not None, any(waits), why_none), notes=tuple(notes),
    )  # fmt: skip


def _unknown(has_launches: bool, has_waits: bool, no_steps: str) -> dict[Signal, str]:
    unknown = dict(_UNKNOWN)
    if no_steps:
        unknown[Signal.STEPS] = no_steps
    if not has_waits:
        unknown[Signal.DATA_WAIT] = "no range of NVTX is named as a wait for a batch"
    if not has_launches:
        unknown[Signal.LAUNCHES] = f"the export has no calls ({_CALLS})"
    return unknown


def _columns(connection: sqlite3.Connection) -> Columns:
    found = {}
    for table in (_KERNELS, _COPIES, _SETS, _CALLS, _RANGES, _TEXTS):
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if columns:
            found[table] = columns
    return found


def _activities(
    connection: sqlite3.Connection, columns: Columns, texts: Mapping[int, str]
) -> tuple[Table, dict[int, str], dict[int, Activity]]:
    """Return all operations of devices, their names, and what those of them do that are no kernels."""
    parts = []
    names: dict[int, str] = {}
    activities: dict[int, Activity] = {}
    if _KERNELS in columns:
        name = "shortName" if "shortName" in columns[_KERNELS] else "demangledName"
        kernels = _table(connection, columns, _KERNELS, name)
        names |= {key: texts.get(key, f"kernel {key}") for key in np.unique(kernels.name).tolist()}
        parts.append(kernels)
    if _COPIES in columns:
        copies = _table(connection, columns, _COPIES, f"{_FIRST_COPY_NAME} - copyKind")
        for key in np.unique(copies.name).tolist():
            kind = _FIRST_COPY_NAME - key
            names[key] = _COPY_NAMES.get(kind, f"Memcpy of kind {kind}")
            activities[key] = Activity.H2D if kind == _HOST_TO_DEVICE else Activity.COPY
        parts.append(copies)
    if _SETS in columns:
        names[_SET_NAME], activities[_SET_NAME] = "Memset", Activity.SET
        parts.append(_table(connection, columns, _SETS, str(_SET_NAME)))
    return Table.joined(parts), names, activities


def _table(connection: sqlite3.Connection, columns: Columns, table: str, name: str) -> Table:
    """Return a table of activities; columns that older versions lack are filled in."""

    def column(wanted: str, absent: int) -> str:
        return f"coalesce({wanted}, {absent})" if wanted in columns[table] else str(absent)

    wanted = ["start", '"end"', column("deviceId", 0), column("globalPid", _NO_PROCESS)]
    wanted += [column("correlationId", _ABSENT), f"coalesce({name}, {_NO_NAME})", column("bytes", _ABSENT)]
    query = f'SELECT {", ".join(wanted)} FROM {table} WHERE start NOT NULL AND "end" NOT NULL'
    return Table(*_fetched(connection, query))


def _fetched(connection: sqlite3.Connection, query: str) -> list[Ints]:
    """Return the columns of a query of whole numbers, whose rows are never objects all at once."""
    cursor = connection.execute(query)
    names = [f"column_{at}" for at in range(len(cursor.description))]
    rows = np.fromiter(cursor, dtype=[(name, np.int64) for name in names])
    return [np.ascontiguousarray(rows[name]) for name in names]


def _ranges(connection: sqlite3.Connection, columns: Columns, texts: Mapping[int, str]) -> list[Range]:
    """Return the ranges of NVTX that are named like a step or a wait for a batch, by start."""
    if _RANGES not in columns:
        return []
    thread, text, text_id = (name if name in columns[_RANGES] else "NULL" for name in ("globalTid", "text", "textId"))
    query = f'SELECT start, "end", coalesce({thread}, 0), {text}, {text_id} FROM {_RANGES} WHERE "end" NOT NULL'
    known: dict[str, tuple[str, int] | None] = {}
    found = []
    for start_ns, end_ns, thread_id, words, key in connection.execute(f"{query} ORDER BY start"):
        named = words if words is not None else texts.get(key)
        if not isinstance(named, str):  # a column may hold anything
            continue
        if named not in known:
            known[named] = recognised(named)
        what = known[named]
        if what is not None and end_ns >= start_ns:
            found.append(Range(start_ns, end_ns, thread_id, *what))
    return found


def _processes(table: Table, ranges: list[Range]) -> list[int]:
    """Return the processes that used a device, by their first device; without any, those with ranges."""
    if len(table):
        seen = {
            process: int(table.device[table.process == process].min()) for process in np.unique(table.process).tolist()
        }
        return sorted(seen, key=lambda process: (seen[process], process))
    return sorted({each.thread & _PROCESS_BITS for each in ranges})


def _launches(connection: sqlite3.Connection, columns: Columns, table: Table, origin_ns: int) -> Floats | None:
    """Return when the host issued each operation, NaN where that is not known; None where there are no calls."""
    if _CALLS not in columns or not {"start", "correlationId", "globalTid"} <= columns[_CALLS]:
        return None
    query = (
        f"SELECT start, coalesce(correlationId, {_ABSENT}), coalesce(globalTid, 0) FROM {_CALLS} WHERE start NOT NULL"
    )
    issued_ns, correlation, thread = _fetched(connection, query)
    if not len(issued_ns):
        return None
    has_processes = bool((table.process != _NO_PROCESS).any())
    process = thread & _PROCESS_BITS if has_processes else np.zeros_like(thread)
    _, number = np.unique(np.concatenate([process, table.process]), return_inverse=True)
    keys = (number << 32) + np.concatenate([correlation, table.correlation])
    calls, wanted = keys[: len(process)], keys[len(process) :]
    order = np.argsort(calls, kind="stable")
    at = order[np.minimum(np.searchsorted(calls[order], wanted), len(calls) - 1)]
    known = (calls[at] == wanted) & (table.correlation != _ABSENT)
    return np.where(known, (issued_ns[at] - origin_ns) / 1e9, np.nan)


def _devices(
    table: Table,
    of_rank: npt.NDArray[np.bool_],
    rank: int,
    names: Mapping[int, str],
    activities: Mapping[int, Activity],
    launch_s: Floats | None,
    origin_ns: int,
) -> list[DeviceOperations]:
    found = []
    for device in np.unique(table.device[of_rank]).tolist():
        chosen = of_rank & (table.device == device)
        rows = table.at(chosen)
        found.append(
            DeviceOperations.of(
                rank=rank, device=device, name=rows.name,
                intervals=((rows.start_ns - origin_ns) / 1e9, (rows.end_ns - origin_ns) / 1e9),
                names=names, activities=activities,
                num_bytes=np.where(rows.num_bytes >= 0, rows.num_bytes, np.nan),
                launch_s=None if launch_s is None else launch_s[chosen],
            )
        )  # fmt: skip
    return found


def _damaged(path: Path, why: str) -> UserError:
    return UserError(
        code="trace-damaged",
        what=f"{path.name} cannot be read as an export of Nsight Systems: {why}.",
        value=str(path),
        next_step="Export the report again: nsys export --type sqlite REPORT.nsys-rep",
    )
