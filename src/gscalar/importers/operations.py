"""Tables of operations: one row for each operation of each traced rank, as cluster-wide recorders write them.

Columns: `dp_rank`, `stage`, `rank`, `step`, `optype`, `start_ts`, `duration` (seconds, from the step's begin), `seq_id`
(number among the rank's operations of the type in the step), `mb_id` (micro-batch of a compute operation), `gmc` (model
chunk over the whole pipeline). That is the format of the traces that came with "Understanding Stragglers in Large
Model Training Using What-if Analysis" (OSDI 2025). Parquet (with pyarrow) or CSV.

Only one of the ranks that share tensors is in such a table, so those ranks are missing and nothing is said of them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.base.errors import EnvironmentProblem, UserError
from gscalar.model.timeline import (
    ACCOUNT_NAMES,
    COMMUNICATES,
    NONE,
    Activity,
    Floats,
    Lane,
    Rank,
    Signal,
    Spans,
    StepTimeline,
)

Table = dict[str, npt.NDArray[np.generic]]

COLUMNS: Final = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration")
_OPTIONAL: Final = ("seq_id", "mb_id", "gmc")
_STEP: Final = 3  # among the columns of a row's place
_LARGEST: Final = 2**53  # a float holds every whole number up to it
_LONGEST_S: Final = 1e10  # longer than since 1970
ACTIVITIES: Final = {
    "forward-compute": Activity.FORWARD,
    "backward-compute": Activity.BACKWARD,
    "forward-send": Activity.SEND_FORWARD,
    "forward-recv": Activity.RECEIVE_FORWARD,
    "backward-send": Activity.SEND_BACKWARD,
    "backward-recv": Activity.RECEIVE_BACKWARD,
    "params-all-gather": Activity.GATHER_PARAMETERS,
    "grads-reduce-scatter": Activity.SCATTER_GRADIENTS,
    "grads-all-reduce": Activity.REDUCE_GRADIENTS,
    "embedding-grads-all-reduce": Activity.REDUCE_EMBEDDING,
    "layernorm-grads-all-reduce": Activity.REDUCE_LAYERNORM,
    "optimizer-clip-main-grad": Activity.CLIP,
    "optimizer": Activity.OPTIMIZER,
    "gc": Activity.GC,
}
_COMPUTES: Final = (Activity.FORWARD, Activity.BACKWARD)
_MISSING: Final = {
    Signal.DATA_WAIT: "a table of operations has no loader",
    Signal.QUEUE: "a table of operations has no loader",
    Signal.LAUNCHES: "a table of operations has no launches",
    Signal.WORK: "a table of operations does not say how many tokens an operation had",
    Signal.MEMORY_BANDWIDTH: "no counters",
    Signal.CHECKPOINTS: "a table of operations has no checkpoints",
}


def read_operations(path: Path) -> StepTimeline:
    """Return the timeline of a table of operations.

    Raises `UserError` trace-damaged (not readable, or columns are missing) and `EnvironmentProblem` package-missing
    where a parquet file is given and pyarrow is not installed.
    """
    table = _read_table(path)
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise _damaged(path, f"columns are missing: {', '.join(missing)}")
    if not len(table["rank"]):
        raise _damaged(path, "it has no rows")
    if not _sound(table).any():
        raise _damaged(path, "no row has a start and a duration")
    return operations_timeline(path.name, table)


def _read_table(path: Path) -> Table:
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    return _read_parquet(path) if is_parquet else _read_csv(path)


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow  # type: ignore[import-untyped,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise EnvironmentProblem(
            code="package-missing",
            what="Reading a parquet file needs pyarrow, which is not installed.",
            value=str(path),
            next_step="pip install 'gscalar[traces]'",
        ) from error
    try:
        file = pyarrow.parquet.ParquetFile(path, read_dictionary=["optype"])
        names = [name for name in (*COLUMNS, *_OPTIONAL) if name in file.schema_arrow.names]
        read = file.read(columns=names)
        table: Table = {}
        for name in names:
            column = read[name].combine_chunks()
            if name == "optype":
                if not pyarrow.types.is_dictionary(column.type):
                    raise _damaged(path, f"its column optype is no text but {column.type}")
                # Bytes, of which not all are UTF-8; and a word for rows that have none.
                known = column.dictionary.cast(pyarrow.large_binary()).to_pylist()
                words = np.array([*(word.decode(errors="replace") for word in known), ""], object)
                table[name] = words[column.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)]
            else:
                table[name] = column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, str(error).splitlines()[0].rstrip(".")) from error
    return table


def _read_csv(path: Path) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            found = reader.fieldnames or ()
            twice = sorted(name for name in COLUMNS if list(found).count(name) > 1)
            if twice:
                raise ValueError(f"columns are there twice: {', '.join(twice)}")
            rows = list(reader)
        # Cells may be empty, and the last row cut short.
        return {
            name: np.array([row[name] or "" for row in rows], object)
            if name == "optype"
            else np.array([float(row[name] or "nan") for row in rows])
            for name in (*COLUMNS, *_OPTIONAL)
            if name in found
        }
    except (ValueError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise _damaged(path, str(error)) from error


def operations_timeline(name: str, table: Table) -> StepTimeline:
    """Return the timeline of the columns of a table, which all have the same length, at least one sound row."""
    start_s, duration_s = (np.asarray(table[key], np.float64) for key in ("start_ts", "duration"))
    notes: list[str] = []
    sound = _sound(table)
    if not sound.all():
        notes.append(
            f"{int((~sound).sum())} operations without a place, a start or a duration of at least 0 are left out"
        )
    number, step_number, dp, stage = (
        np.asarray(table[key])[sound].astype(np.int64) for key in ("rank", "step", "dp_rank", "stage")
    )
    words, word = np.unique(np.asarray(table["optype"][sound], str), return_inverse=True)
    activity = np.array([ACTIVITIES.get(each, Activity.OTHER) for each in words], np.int64)[word]
    numbers, first, rank = np.unique(number, return_index=True, return_inverse=True)
    ranks = tuple(
        Rank(rank=int(each), data_rank=int(dp[at]), stage=int(stage[at]), clock_error_s=0.0)
        for each, at in zip(numbers, first, strict=True)
    )
    steps, step = np.unique(step_number, return_inverse=True)
    start_s, duration_s = start_s[sound], duration_s[sound]
    optional = {key: _numbers(table[key][sound]) if key in table else np.full(len(rank), NONE) for key in _OPTIONAL}
    computes, moves = np.isin(activity, (*_COMPUTES, Activity.OPTIMIZER)), np.isin(activity, list(COMMUNICATES))
    spans = Spans.of(
        len(rank), rank=rank, step=step, activity=activity, name=word, start_s=start_s, end_s=start_s + duration_s,
        lane=np.where(computes, Lane.COMPUTE, np.where(moves, Lane.COMMUNICATION, Lane.HOST)),
        sequence=optional["seq_id"], micro=optional["mb_id"], chunk=optional["gmc"],
    )  # fmt: skip
    unmatched = tuple(str(each) for each in words if str(each) not in ACTIVITIES)
    begin_s, end_s = _frames(spans, len(ranks), len(steps))
    return StepTimeline(
        source="operations", name=name, ranks=ranks, steps=steps, begin_s=begin_s, end_s=end_s,
        accounts=_accounts(spans, begin_s, end_s), spans=spans, names=tuple(str(each) for each in words),
        world=len(ranks), unknown=_MISSING, unmatched=unmatched, notes=tuple(notes),
    )  # fmt: skip


def _sound(table: Table) -> npt.NDArray[np.bool_]:
    """Return which rows have a place, a start and a duration, `(num_rows,)`, none of them beyond all measure."""
    numbers = np.stack([np.asarray(table[name], np.float64) for name in COLUMNS if name != "optype"])
    places, times_s = numbers[:-2], numbers[-2:]
    held = (np.abs(places) <= _LARGEST).all(axis=0) & (np.abs(times_s) <= _LONGEST_S).all(axis=0)  # not NaN
    sound: npt.NDArray[np.bool_] = held & (numbers[-1] >= 0) & (np.delete(places, _STEP, axis=0) >= 0).all(axis=0)
    return sound


def _numbers(column: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Return whole numbers; NONE where there is none."""
    numbers = np.asarray(column, np.float64)
    return np.where(np.abs(numbers) <= _LARGEST, numbers, NONE).astype(np.int64)


def _frames(spans: Spans, num_ranks: int, num_steps: int) -> tuple[Floats, Floats]:
    """Return each step's begin, which all ranks share, and each rank's end; NaN where a rank lacks the step."""
    begin_s, end_s = np.full((2, num_ranks, num_steps), np.inf)
    np.minimum.at(begin_s, (spans.rank, spans.step), spans.start_s)
    end_s = -end_s
    np.maximum.at(end_s, (spans.rank, spans.step), spans.end_s)
    absent = ~np.isfinite(begin_s)
    begin_s = np.broadcast_to(begin_s.min(axis=0), begin_s.shape).copy()
    begin_s[absent], end_s[absent] = np.nan, np.nan
    return begin_s, end_s


def _accounts(spans: Spans, begin_s: Floats, end_s: Floats) -> Floats:
    """Return the accounts of each rank and step: `other` is neither compute nor communication, or of unknown kind."""
    accounts = np.full((*begin_s.shape, len(ACCOUNT_NAMES)), np.nan)
    lengths = {
        name: _sum_of(spans, np.isin(spans.activity, activities), begin_s.shape)
        for name, activities in (("compute", _COMPUTES), ("optimizer", (Activity.OPTIMIZER,)), ("gc", (Activity.GC,)))
    }
    covered = _covered(spans, spans.activity != Activity.OTHER, begin_s.shape)
    known: Floats = np.sum(list(lengths.values()), axis=0)
    for name, seconds in lengths.items():
        accounts[:, :, ACCOUNT_NAMES.index(name)] = seconds
    accounts[:, :, ACCOUNT_NAMES.index("exposed_communication")] = np.maximum(covered - known, 0.0)
    accounts[:, :, ACCOUNT_NAMES.index("other")] = np.maximum(end_s - begin_s - np.maximum(covered, known), 0.0)
    accounts[np.isnan(begin_s)] = np.nan
    return accounts


def _sum_of(spans: Spans, chosen: npt.NDArray[np.bool_], shape: tuple[int, ...]) -> Floats:
    seconds = np.zeros(shape)
    np.add.at(seconds, (spans.rank[chosen], spans.step[chosen]), spans.duration_s[chosen])
    return seconds


def _covered(spans: Spans, chosen: npt.NDArray[np.bool_], shape: tuple[int, ...]) -> Floats:
    """Return how long each rank did any of the chosen in each step: the length of the union of these spans."""
    order = np.lexsort((spans.start_s, spans.step, spans.rank))
    order = order[chosen[order]]
    if not len(order):
        return np.zeros(shape)
    cell = (spans.rank * shape[1] + spans.step)[order]
    start_s, end_s = spans.start_s[order], spans.end_s[order]
    new = np.r_[True, cell[1:] != cell[:-1]]
    # The latest end before each span of its cell: cells are put one after the other by what no span reaches.
    reach = float(np.ptp(end_s)) + float(np.ptp(start_s)) + 1.0
    ends = np.maximum.accumulate(end_s + cell * reach) - cell * reach
    before = np.where(new, -np.inf, np.r_[-np.inf, ends[:-1]])
    gained = np.maximum(end_s - np.maximum(start_s, before), 0.0)
    return np.bincount(cell, weights=gained, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)


def _damaged(path: Path, why: str) -> UserError:
    return UserError(
        code="trace-damaged",
        what=f"{path.name} cannot be read as a table of operations: {why}.",
        value=str(path),
        next_step=f"It must have the columns {', '.join(COLUMNS)}.",
    )
