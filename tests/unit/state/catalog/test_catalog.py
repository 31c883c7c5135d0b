from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.dialects import postgresql

from gscalar.base.errors import EnvironmentProblem, Retryable, ScalarError
from gscalar.state.catalog import catalog as opening
from gscalar.state.catalog import migrating, open_catalog, schema, sqlite, storing
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home
from gscalar.testing.catalog_damage import damage_table


@pytest.fixture
def place(home: Path) -> Home:
    return Home(home)


def run(run_id: str = "r1", **fields: object) -> RunSummary:
    given = {"project": "demo", "name": "tiny", "status": "completed", "created_ns": 1} | fields
    return RunSummary(id=run_id, **given)  # type: ignore[arg-type]


def test_the_newest_migration_is_the_revision_that_the_fast_path_compares_with() -> None:
    assert migrating.head() == schema.HEAD_REVISION


def test_the_migrations_make_the_tables_that_the_code_uses(place: Home) -> None:
    with open_catalog(place) as catalog, catalog.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        got = compare_metadata(context, schema.metadata)
    assert got == []


def test_the_migrations_can_be_taken_back(place: Home) -> None:
    open_catalog(place).close()
    engine = sqlite.create_engine(place.index, busy_timeout_s=1)
    with engine.connect() as connection:
        connection.execution_options(**{sqlite.WRITES: True})
        with connection.begin():
            command.downgrade(migrating.configuration(connection), "base")
        connection.rollback()
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]
    engine.dispose()


def test_an_up_to_date_catalog_opens_without_a_migration(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    open_catalog(place).close()
    monkeypatch.setattr(opening, "_migrate", lambda *_: pytest.fail("migrated"))
    open_catalog(place).close()


def test_readers_and_a_writer_work_at_once(place: Home) -> None:
    with open_catalog(place) as first, open_catalog(place) as second:
        with first.write() as connection:
            storing.replace_run(connection, run())
            with second.read() as other:
                assert storing.load_states(other) == {}
        with second.read() as other:
            assert list(storing.load_states(other)) == ["r1"]


def test_a_second_writer_gives_up_after_its_timeout_and_says_so(place: Home) -> None:
    with open_catalog(place) as first, open_catalog(place, busy_timeout_s=0) as second, first.write():
        with pytest.raises(Retryable) as caught, second.write():
            pass
        assert caught.value.code == "catalog-busy"


def test_a_write_that_fails_leaves_nothing(place: Home) -> None:
    def fail(connection: sa.Connection) -> None:
        storing.replace_run(connection, run())
        raise RuntimeError

    with open_catalog(place) as catalog:
        with pytest.raises(RuntimeError), catalog.write() as connection:
            fail(connection)
        with catalog.read() as connection:
            assert storing.load_states(connection) == {}


def test_a_catalog_of_a_newer_version_is_refused_and_left_alone(place: Home) -> None:
    open_catalog(place).close()
    set_revision(place.index, "9999")
    before = place.index.read_bytes()
    with pytest.raises(EnvironmentProblem) as caught:
        open_catalog(place)
    assert (caught.value.code, caught.value.value) == ("store-newer", "9999")
    assert place.index.read_bytes() == before


def test_an_older_catalog_is_copied_before_it_is_migrated(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_catalog(place) as catalog, catalog.write() as connection:
        storing.replace_run(connection, run())
    monkeypatch.setattr(opening, "HEAD_REVISION", "0002")
    steps = []
    monkeypatch.setattr(migrating, "migrate", lambda engine: steps.append("migrated"))
    open_catalog(place).close()
    copy = sqlite3.connect(place.path / "index.db.before-0002")
    assert copy.execute("SELECT id FROM runs").fetchall() == [("r1",)]
    copy.close()
    assert steps == ["migrated"]


def set_revision(path: Path, revision: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.commit()
    connection.close()


DAMAGE = {
    "a file of other bytes": b"this is no database" * 100,
    "a database whose first page is overwritten": b"SQLite format 3\0" + b"\xff" * 5000,
}


@pytest.mark.parametrize("sentence", DAMAGE)
def test_a_damaged_file_is_set_aside_and_a_new_one_made(sentence: str, place: Home) -> None:
    place.path.mkdir()
    place.index.write_bytes(DAMAGE[sentence])
    with open_catalog(place) as catalog:
        assert catalog.damaged_file is not None
        assert catalog.damaged_file.read_bytes() == DAMAGE[sentence]
        with catalog.read() as connection:
            assert storing.load_states(connection) == {}


def test_the_log_of_a_damaged_file_is_not_replayed_into_the_new_one(place: Home) -> None:
    place.path.mkdir()
    place.index.write_bytes(DAMAGE["a file of other bytes"])
    stale = place.path / "index.db-wal"
    stale.write_bytes(b"old log")
    with open_catalog(place):
        assert not stale.exists() or stale.read_bytes() != b"old log"


def test_an_empty_file_is_a_new_catalog(place: Home) -> None:
    place.path.mkdir()
    place.index.touch()
    with open_catalog(place) as catalog:
        assert catalog.damaged_file is None


def test_a_sound_catalog_is_never_set_aside(place: Home) -> None:
    open_catalog(place).close()
    assert opening.replace_damaged(place.index) is None
    assert place.index.exists()


def test_damage_that_is_met_later_is_explained(place: Home) -> None:
    open_catalog(place).close()
    damage_table(place.index, "runs")
    with open_catalog(place) as catalog, pytest.raises(EnvironmentProblem) as caught, catalog.read() as connection:
        storing.load_states(connection)
    assert caught.value.code == "catalog-damaged"
    assert "doctor --rebuild" in caught.value.next_step


def test_a_home_that_cannot_be_made_is_an_environment_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem) as caught:
        open_catalog(Home(tmp_path / "file"))
    assert caught.value.code == "home-not-writable"


def test_a_folder_in_place_of_the_catalog_is_an_environment_problem(place: Home) -> None:
    place.index.mkdir(parents=True)
    with pytest.raises(EnvironmentProblem) as caught:
        open_catalog(place)
    assert caught.value.code == "home-not-writable"


def test_a_deleted_index_is_noticed(place: Home) -> None:
    with open_catalog(place) as catalog:
        assert catalog.is_current()
        place.index.unlink()
        assert not catalog.is_current()


def test_the_index_may_lie_elsewhere(place: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSCALAR_INDEX", str(tmp_path / "local" / "node.db"))
    open_catalog(place).close()
    assert (tmp_path / "local" / "node.db").exists()
    assert not (place.path / "index.db").exists()


EXPLAINED = {
    "SQLITE_CORRUPT_INDEX": "catalog-damaged",
    "SQLITE_NOTADB": "catalog-damaged",
    "SQLITE_BUSY_SNAPSHOT": "catalog-busy",
    "SQLITE_FULL": "disk-full",
    "SQLITE_READONLY_DIRECTORY": "home-not-writable",
    "SQLITE_IOERR_WRITE": "home-not-writable",
    "SQLITE_CONSTRAINT": None,
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_database_error_becomes_one_that_a_user_can_act_on(name: str) -> None:
    error = sqlite3.OperationalError("as the driver says it")
    error.sqlite_errorname = name
    got: ScalarError | None = sqlite.explain(error, Path("index.db"))
    assert (got.code if got else None) == EXPLAINED[name]


def test_every_table_can_be_made_by_postgresql() -> None:
    for table in schema.metadata.sorted_tables:
        text = str(sa.schema.CreateTable(table).compile(dialect=postgresql.dialect()))
        assert table.name in text
