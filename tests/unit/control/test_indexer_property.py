"""However reading and writing are interleaved, the catalog is what reading everything at the end gives."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from gscalar.control.indexer import rebuild, refresh
from gscalar.control.indexing.run_index import RunIndex
from gscalar.model import events
from gscalar.state.catalog import Catalog, open_catalog, schema, storing
from gscalar.state.home import Home, RunFolder
from gscalar.state.records.reader import Frame, RecordTail
from gscalar.testing.builders import RunBuilder

# What may be different: when the files were looked at.
LOOKS = {"settled_mtime_ns", "mtime_ns", "size"}

ACTIONS = st.sampled_from(
    [
        "train",
        "train",
        "log",
        "nan",
        "checkpoint",
        "resume",
        "anew",
        "fail",
        "note",
        "edit",
        "prune",
        "stop",
        "damage",
        "accounts",
        "hardware",
        "clock",
    ]
)
LOOK = st.sampled_from(["refresh", "kept", "other", "nothing", "nothing"])


def dump(catalog: Catalog) -> dict[str, list[dict[str, Any]]]:
    with catalog.read() as connection:
        return {
            table.name: [
                {key: value for key, value in row.items() if key not in LOOKS}
                for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
            ]
            for table in schema.metadata.sorted_tables
        }


def act(run: RunBuilder, action: str, number: int) -> None:
    """Do something that a run does; `number` is unique in the example."""
    if action == "train":
        run.train(2)
    elif action == "log":
        run.log({f"m{number % 3}": float(number), "shared": -float(number)}, rank=number % len(run.workers))
    elif action == "nan":
        run.log({"shared": float("nan")}).tell(events.Nonfinite(number, run.step, 0, "loss"), rank=0)
    elif action == "checkpoint":
        run.checkpoint()
    elif action == "resume":
        run.end_attempt("killed").launch(1 + number % 2, from_step=run.step * (number % 4) // 4)
    elif action == "anew":
        run.end_attempt("failed").launch(1 + number % 2)
    elif action == "fail":
        run.fail(message=f"failure {number}")
    elif action == "note":
        run.tell(events.Note(run.clock.advance(0.1), "warning", "c", f"note {number % 2}"))
    elif action == "edit":
        run.edit(f"e{number}", tags={f"t{number % 3}": str(number) if number % 2 else None})
    elif action == "prune":
        path = f"checkpoints/step-{max(0, run.step - 2):09d}"
        run.tell(events.CheckpointRemoved(run.clock.advance(0.1), run.step, path, "pruned"), rank=0)
    elif action == "stop":
        run.finish().end("interrupted").launch(2, from_step=run.step)
    elif action == "accounts":
        run.train(3, accounts=[{"compute": 0.1 * number, "data_wait": 0.01}, {"compute": 0.3, "gc": 1e-7}])
    elif action == "hardware":
        run.sample({"host/cpu_cores": 0.1 * number, "host/memory_bytes": float(number)}).sample({"x": 0.1}, of=0)
    elif action == "clock":
        run.tell(events.Clock(run.clock(), 0.1 * number, 0.0, 0.001, 5)).jump(0.1 * number - 0.3)
    elif action == "damage":
        damage(run)


def damage(run: RunBuilder) -> None:
    """Write bytes that are no frame between two frames, as a bad disk does."""
    path = run.workers[0].path
    run.train(1)
    with path.open("ab") as file:
        file.write(b"\x07garbage\xff" * 3)
    run.train(1)


def alive(owner: Mapping[str, Any]) -> bool:
    return True


@pytest.fixture(scope="module")
def empty_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated catalog without rows, since migrating takes longer than the rest of an example."""
    home = Home(tmp_path_factory.mktemp("template"))
    open_catalog(home).close()
    return home.index


@settings(max_examples=40)
@given(
    script=st.lists(st.tuples(ACTIONS, LOOK, st.sampled_from([3, 20_000])), min_size=1, max_size=14),
    ends=st.booleans(),
)
def test_incremental_is_rebuilt(empty_index: Path, script: list[tuple[str, str, int]], ends: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(empty_index, folder)
        home = Home(Path(folder))
        compare(home, script, ends)


def compare(home: Home, script: list[tuple[str, str, int]], ends: bool) -> None:
    with open_catalog(home) as catalog:
        run = RunBuilder(home).launch(2)
        kept = RunIndex(home, run.run_id, alive)
        for number, (action, look, max_frames) in enumerate(script):
            act(run, action, number)
            if look == "refresh":
                refresh(home, catalog, is_alive=alive)
            elif look == "kept":
                kept.catch_up(catalog, max_frames=max_frames)
            elif look == "other":
                RunIndex(home, run.run_id, alive).catch_up(catalog, max_frames=max_frames)
        if ends:
            run.finish().end()
        else:
            run.abandon()
        refresh(home, catalog, is_alive=alive)
        incremental = dump(catalog)
        with catalog.read() as connection:
            (summary,) = storing.load_runs(connection, [run.run_id])
        rebuild(home, is_alive=alive)
        assert dump(catalog) == incremental
        got = {name: (each.count, repr(each.last), each.min, each.max) for name, each in summary.metrics.items()}
        assert repr(got) == repr(plain_metrics(run.folder))


def plain_metrics(folder: RunFolder) -> dict[str, tuple[int, str, float, float]]:
    """Return count, last, min and max of each metric, computed the simple way: everything in memory."""
    logged: dict[tuple[int, int], list[tuple[int, str, float]]] = {}
    starts: dict[int, int] = {}
    for path in sorted(folder.records.glob("a*-r*.rec")):
        attempt, rank = int(path.stem[1:4]), int(path.stem[6:])
        tail = RecordTail(path)
        for item in tail.poll():
            event = item.event if isinstance(item, Frame) else None
            values = logged.setdefault((attempt, rank), [])
            if isinstance(event, events.Resumed):
                starts[attempt] = event.step
            elif isinstance(event, events.Step):
                starts.setdefault(attempt, -1)
                rates = (event.tokens / event.duration_s, event.samples / event.duration_s)
                names = ("train/loss", "train/lr", "train/step_s", "train/tokens_per_s", "train/samples_per_s")
                told = zip(names, (event.loss, event.lr, event.duration_s, *rates), strict=True)
                values += [(event.step, name, value) for name, value in told]
            elif isinstance(event, events.Finished):
                starts.setdefault(attempt, -1)
            elif isinstance(event, events.Points):
                values += [(event.step, name, value) for name, value in (tail.values(event) or {}).items()]
    kept: dict[str, dict[int, list[float]]] = {}
    for (attempt, rank), values in sorted(logged.items()):
        cut = min((start for later, start in starts.items() if later > attempt), default=2**62)
        for step, name, value in values:
            if step <= cut:
                kept.setdefault(name, {}).setdefault(rank, []).append(value)
    found = {name: of_rank[min(of_rank)] for name, of_rank in sorted(kept.items())}
    return {name: (len(values), repr(values[-1]), *extremes(values)) for name, values in found.items()}


def extremes(values: list[float]) -> tuple[float, float]:
    numbers = [value for value in values if value == value]
    return min(numbers, default=float("nan")), max(numbers, default=float("nan"))
