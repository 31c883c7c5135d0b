from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from gscalar.state.catalog import Catalog, open_catalog, schema, storing
from gscalar.state.catalog.rows import (
    AttemptRow,
    CheckpointRow,
    FailureRow,
    FileRow,
    MetricSummary,
    NoteRow,
    ParamRow,
    RunSummary,
)
from gscalar.state.home import Home

FULL = RunSummary(
    id="r1",
    project="lm",
    name="größe 模型",
    status="failed",
    created_ns=2**62,
    started_ns=5,
    ended_ns=9,
    last_seen_ns=9,
    steps=10,
    total_steps=100,
    tokens=1.5,
    samples=3.0,
    world=2,
    seed=2**63 - 1,
    spec={"config": {"lr": 0.1, "nan": math.inf, "text": "😀\x00"}, "seed": 10**30},
    origins={"config.lr": "flag"},
    environment={"os": {"host": "a"}},
    facts={"parameters": 10},
    digests={"weights": "ab", "spec": "cd"},
    throughput={"steps_per_s": 2.0},
    nonfinite={"count": 1},
    num_dropped=3,
    damage={"bytes": 4},
    owner={"host": "a", "pid": 1, "pid_start": 1.5},
    attempts=(
        AttemptRow(
            attempt=0, started_ns=1, ended_ns=None, outcome=None, failure={"kind": "E"}, world=2, from_step=0
        ),
    ),
    params=(ParamRow(key="config.lr", value="0.1", number=0.1, origin="flag"),),
    tags={"a": "1", "b": "x=y"},
    metrics={"loss": MetricSummary(count=2, num_nan=1, last_step=4, last=math.inf, least=-0.0, greatest=math.inf)},
    checkpoints=(CheckpointRow(path="c/1", step=1, attempt=0, time_ns=1, num_bytes=2**40, sha256="ef"),),
    failures=(
        FailureRow(
            attempt=0, rank=1, time_ns=3, step=4, failure_class="killed", kind="SIGKILL", message="m",
            traceback="t", secondary=True,
        ),
    ),
    notes=(NoteRow(attempt=0, rank=0, time_ns=1, level="info", code="c", text="t", count=2),),
)  # fmt: skip


@pytest.fixture
def catalog(home: Path) -> Iterator[Catalog]:
    with open_catalog(Home(home)) as opened:
        yield opened


def store(catalog: Catalog, *runs: RunSummary) -> None:
    with catalog.write() as connection:
        for run in runs:
            storing.replace_run(connection, run)


def load(catalog: Catalog, *ids: str) -> list[RunSummary]:
    with catalog.read() as connection:
        return storing.load_runs(connection, ids)


def file_row(**fields: object) -> FileRow:
    given = {
        "file": "a000-r00000.rec", "attempt": 0, "rank": 0, "writer": "worker", "offset": 10, "size": 10,
        "mtime_ns": 7, "facts": b"\x00\xff", "num_events": 1, "num_damaged": 0, "damaged_bytes": 0,
        "num_dropped": 0, "num_seals": 0, "closed": False,
    } | fields  # fmt: skip
    return FileRow(**given)  # type: ignore[arg-type]


def test_a_run_comes_out_as_it_went_in(catalog: Catalog) -> None:
    store(catalog, FULL)
    assert load(catalog, "r1") == [FULL]


def test_the_sign_of_zero_is_kept(catalog: Catalog) -> None:
    store(catalog, FULL)
    (got,) = load(catalog, "r1")
    assert math.copysign(1, got.metrics["loss"].least) == -1


def test_a_metric_of_nan_only_has_no_number_and_comes_out_as_nan(catalog: Catalog) -> None:
    summary = MetricSummary(count=2, num_nan=2, last_step=4)
    store(catalog, dataclasses.replace(FULL, metrics={"loss": summary}))
    with catalog.read() as connection:
        row = connection.execute(sa.select(schema.run_metrics)).one()
    assert (row.last, row.min, row.max, row.count) == (None, None, None, 2)
    (got,) = load(catalog, "r1")
    assert all(math.isnan(value) for value in (got.metrics["loss"].last, got.metrics["loss"].min))


def test_a_run_is_replaced_as_a_whole(catalog: Catalog) -> None:
    bare = RunSummary(id="r1", project="other", name="n", status="queued", created_ns=1)
    store(catalog, FULL, bare)
    assert load(catalog, "r1") == [bare]


def test_runs_come_in_the_order_of_the_ids_and_unknown_ones_are_left_out(catalog: Catalog) -> None:
    store(catalog, *(dataclasses.replace(FULL, id=f"r{number}") for number in range(3)))
    assert [run.id for run in load(catalog, "r2", "gone", "r0")] == ["r2", "r0"]


def test_many_runs_are_loaded_at_once(catalog: Catalog) -> None:
    bare = RunSummary(id="", project="p", name="n", status="queued", created_ns=1)
    ids = [f"r{number:04d}" for number in range(600)]
    store(catalog, *(dataclasses.replace(bare, id=run_id) for run_id in ids))
    assert [run.id for run in load(catalog, *ids)] == ids


def test_a_project_is_there_while_a_run_is_in_it(catalog: Catalog) -> None:
    store(catalog, FULL, dataclasses.replace(FULL, id="r2"), dataclasses.replace(FULL, id="r1", project="new"))
    assert projects(catalog) == ["lm", "new"]
    with catalog.write() as connection:
        storing.forget_run(connection, "r2")
    assert projects(catalog) == ["new"]


def projects(catalog: Catalog) -> list[str]:
    with catalog.read() as connection:
        return sorted(connection.scalars(sa.select(schema.projects.c.name)))


def test_a_deleted_run_leaves_only_a_tombstone(catalog: Catalog) -> None:
    store(catalog, FULL)
    with catalog.write() as connection:
        storing.save_files(connection, "r1", [file_row()])
        storing.mark_deleted(connection, "r1", 77)
    with catalog.read() as connection:
        counts = {
            table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in schema.OF_A_RUN
        }
        state = storing.load_state(connection, "r1")
        assert storing.count_runs(connection) == (0, {})
    assert set(counts.values()) == {0}
    assert state is not None
    assert state.deleted


def test_forgetting_everything_keeps_tombstones(catalog: Catalog) -> None:
    store(catalog, FULL, dataclasses.replace(FULL, id="r2"))
    with catalog.write() as connection:
        storing.mark_deleted(connection, "r1", 77)
        storing.forget_all(connection)
        assert list(storing.load_states(connection)) == ["r1"]


def test_files_come_out_as_they_went_in(catalog: Catalog) -> None:
    row = file_row(metrics={"loss": MetricSummary(count=1, last=0.1, least=0.1, greatest=0.1)})
    with catalog.write() as connection:
        storing.save_files(connection, "r1", [file_row(offset=3), row])
        assert storing.load_files(connection, "r1") == {row.file: row}
        assert storing.load_file_times(connection, "r1") == {row.file: (10, 7)}


OFFSETS: dict[str, tuple[dict[str, int], bool]] = {
    "the stored offsets are those that were read from": ({"a000-r00000.rec": 10}, True),
    "the file was read on by somebody else": ({"a000-r00000.rec": 4}, False),
    "somebody else has read a new file": ({}, False),
    "a file is known that is not stored": ({"a000-r00000.rec": 10, "a000-r00001.rec": 5}, False),
}


@pytest.mark.parametrize("sentence", OFFSETS)
def test_whoever_was_slower_is_told(sentence: str, catalog: Catalog) -> None:
    expected, good = OFFSETS[sentence]
    with catalog.write() as connection:
        storing.save_files(connection, "r1", [file_row()])
        if good:
            assert storing.check_unmoved(connection, "r1", expected)
        else:
            with pytest.raises(storing.Overtaken):
                storing.check_unmoved(connection, "r1", expected)


def test_a_deleted_run_is_not_stored_again(catalog: Catalog) -> None:
    store(catalog, FULL)
    with catalog.write() as connection:
        storing.mark_deleted(connection, "r1", 77)
        assert not storing.check_unmoved(connection, "r1", {})


SUMMARIES: dict[str, tuple[MetricSummary, MetricSummary, tuple[float, float, float, int]]] = {
    "later values come last": (
        MetricSummary(count=1, last_step=1, last=2.0, least=2.0, greatest=2.0),
        MetricSummary(count=2, last_step=3, last=1.0, least=1.0, greatest=5.0),
        (1.0, 1.0, 5.0, 3),
    ),
    "no later values change nothing": (
        MetricSummary(count=1, last_step=1, last=2.0, least=2.0, greatest=2.0),
        MetricSummary(),
        (2.0, 2.0, 2.0, 1),
    ),
    "NaN counts and is last, and neither least nor greatest": (
        MetricSummary(count=1, last_step=1, last=2.0, least=2.0, greatest=2.0),
        MetricSummary(count=1, num_nan=1, last_step=2),
        (math.nan, 2.0, 2.0, 2),
    ),
}


@pytest.mark.parametrize("sentence", SUMMARIES)
def test_summaries_are_joined(sentence: str) -> None:
    first, later, want = SUMMARIES[sentence]
    got = first.then(later)
    assert repr((got.last, got.min, got.max, got.count)) == repr(want)
