"""What a glance says is what the catalog says, or nothing."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gscalar.base.errors import UserError
from gscalar.control.indexer import refresh
from gscalar.model import events
from gscalar.state.catalog import Catalog, open_catalog, resolve_run, schema, storing
from gscalar.state.catalog.assembling import PARTS
from gscalar.state.catalog.glancing import DECODED, Glance, glance
from gscalar.state.catalog.rows import MetricSummary, RunSummary
from gscalar.state.home import Home
from gscalar.testing.builders import RunBuilder, write_run
from gscalar.testing.catalog_damage import damage_table


@pytest.fixture
def catalog(home: Path) -> Iterator[Catalog]:
    with open_catalog(Home(home)) as opened:
        yield opened


def a_run(run_id: str, name: str = "n", created_ns: int = 1) -> RunSummary:
    return RunSummary(id=run_id, project="p", name=name, status="completed", created_ns=created_ns)


def store(catalog: Catalog, *runs: RunSummary) -> None:
    with catalog.write() as connection:
        for run in runs:
            storing.replace_run(connection, run)


# ---- runs


def test_runs_are_those_that_the_catalog_loads(catalog: Catalog) -> None:
    rich = RunBuilder(catalog.home, "rich", spec={"name": "größe", "config": {"lr": 0.1, "nan": math.inf}}).launch(2)
    rich.train(3).fail().end_attempt("failed").launch().train(2).log({"val/loss": math.nan, "odd": -0.0}).checkpoint()
    rich.tell(events.Note(rich.clock(), "warning", "odd", "this is odd")).end("failed").edit("e1", tags={"team": "a=b"})
    write_run(catalog.home, "plain")
    refresh(catalog.home, catalog)
    with catalog.read() as connection:
        want = storing.load_runs(connection, ["plain", "rich"])
    parts = ("attempts", "params", "tags", "metrics", "checkpoints", "failures", "notes")
    assert all(getattr(want[1], part) for part in parts)
    assert repr(glance(catalog.home, lambda found: found.load_runs(["plain", "rich"]))) == repr(want)


def test_a_bare_run_and_exact_numbers_come_out_as_they_went_in(catalog: Catalog) -> None:
    odd = MetricSummary(count=2, num_nan=1, last_step=4, last=math.inf, least=-0.0, greatest=math.inf)
    want = [
        a_run("a"),
        dataclasses.replace(a_run("b"), seed=2**63 - 1, spec={"text": "😀\x00", "seed": 10**30}, metrics={"loss": odd}),
    ]
    store(catalog, *want)
    assert repr(glance(catalog.home, lambda found: found.load_runs(["a", "b"]))) == repr(want)


def test_every_column_that_is_not_plain_is_decoded() -> None:
    tables = [schema.runs, *(schema.metadata.tables[name] for name in PARTS)]
    kinds: dict[str, set[bool]] = {}
    for table in tables:
        for column in table.c:
            odd = isinstance(column.type, schema.JsonText | sa.Boolean)
            kinds.setdefault(column.name, set()).add(odd)
    assert {name for name, odd in kinds.items() if odd == {True}} == set(DECODED)
    assert all(len(odd) == 1 for odd in kinds.values()), "columns of one name are of one kind"


def test_states_and_times_of_files_are_those_of_the_catalog(catalog: Catalog) -> None:
    run = RunBuilder(catalog.home, "going").launch(2).train(2).abandon()
    refresh(catalog.home, catalog)
    with catalog.read() as connection:
        want = (storing.load_state(connection, run.run_id), storing.load_file_times(connection, run.run_id))
    assert want[0] is not None
    assert want[0].owner
    assert len(want[1]) == 3
    assert glance(catalog.home, lambda found: (found.load_state("going"), found.load_file_times("going"))) == want


def test_a_run_whose_job_is_not_written_yet_is_not_listed(catalog: Catalog) -> None:
    unnamed = dataclasses.replace(a_run("new", "new"), status="running")
    store(catalog, unnamed, a_run("old", "base"), dataclasses.replace(a_run("odd", "odd"), ended_ns=5), a_run("gone"))
    with catalog.write() as connection:
        storing.mark_deleted(connection, "gone", 9)
    assert glance(catalog.home, Glance.list_runs) == {"old": False, "odd": False, "gone": True}


# ---- references

WORDS = st.text("ab_%/", min_size=0, max_size=3)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    runs=st.lists(st.tuples(WORDS.filter(bool), WORDS, st.integers(1, 3)), max_size=6),
    deleted=st.sets(st.integers(0, 5)),
    references=st.lists(WORDS | st.sampled_from(["A", "Ab", "aB"]), min_size=1, max_size=8),
)
def test_a_reference_means_what_the_catalog_says_or_nothing(
    catalog: Catalog, runs: list[tuple[str, str, int]], deleted: set[int], references: list[str]
) -> None:
    with catalog.write() as connection:
        connection.execute(schema.runs.delete())
    store(catalog, *(a_run(*each) for each in runs))
    with catalog.write() as connection:
        for place in deleted & set(range(len(runs))):
            storing.mark_deleted(connection, runs[place][0], 9)
    want = [resolved(catalog, each) for each in references]
    assert glance(catalog.home, lambda found: [found.resolve(each) for each in references]) == want


def resolved(catalog: Catalog, reference: str) -> str | None:
    try:
        return resolve_run(catalog, reference)
    except UserError:
        return None


# ---- what is out of the ordinary


def test_where_there_is_no_catalog_nothing_is_said_and_none_is_made(home: Path) -> None:
    assert glance(Home(home), Glance.list_runs) is None
    assert not Home(home).index.exists()


def test_of_another_revision_nothing_is_said(catalog: Catalog) -> None:
    store(catalog, a_run("a"))
    catalog.close()
    with sqlite3.connect(catalog.path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    assert glance(catalog.home, Glance.list_runs) is None


@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
def test_of_a_file_that_is_no_catalog_nothing_is_said(home: Path, content: bytes) -> None:
    Home(home).index.parent.mkdir(parents=True, exist_ok=True)
    Home(home).index.write_bytes(content)
    assert glance(Home(home), Glance.list_runs) is None


def test_of_a_damaged_table_nothing_is_said(catalog: Catalog) -> None:
    store(catalog, *(a_run(f"{place:04d}") for place in range(100)))
    catalog.close()
    damage_table(catalog.path, "runs")
    assert glance(catalog.home, Glance.list_runs) is None


def test_a_file_may_have_any_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSCALAR_INDEX", str(home / "what? 100 % #1" / "índex.db"))
    with open_catalog(Home(home)) as catalog:
        store(catalog, a_run("a", "x"))
    assert glance(Home(home), Glance.list_runs) == {"a": False}


def test_nothing_is_written(catalog: Catalog) -> None:
    with catalog.write() as connection:
        storing.replace_run(connection, a_run("a"))
        # Another process that is writing hinders nobody from looking.
        assert glance(catalog.home, Glance.list_runs) == {}
