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
from gscalar.base.version import __version__
from gscalar.state.catalog import Catalog, migrating, open_catalog, schema, sqlite, storing
from gscalar.state.catalog import catalog as opening
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home
from gscalar.testing.catalog_damage import MISMATCHES, OLDER, damage_table, mismatch


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
    assert "a newer gscalar, and this is" in caught.value.what
    assert place.index.read_bytes() == before


def test_a_newer_catalog_says_which_version_it_needs(place: Home) -> None:
    open_catalog(place).close()
    set_revision(place.index, "9999", gscalar="7.1.0")
    with pytest.raises(EnvironmentProblem) as caught:
        open_catalog(place)
    assert f"gscalar 7.1.0 or newer, and this is {__version__}" in caught.value.what


def test_the_catalog_knows_which_version_made_it(place: Home) -> None:
    with open_catalog(place) as catalog, catalog.read() as connection:
        rows = connection.execute(sa.select(schema.revisions)).all()
    assert [tuple(row) for row in rows] == [(schema.HEAD_REVISION, __version__)]


# What the code of revision 0001 stored for a run of two record files, one metric and a tombstone beside it.
OLD_ROWS = """
    INSERT INTO projects VALUES ('demo');
    INSERT INTO runs (id, project, name, status, created_ns, ended_ns, steps, total_steps, tokens, samples, world, spec,
        origins, environment, facts, digests, throughput, nonfinite, num_dropped, damage, deleted_ns, settled_mtime_ns)
    VALUES ('7k2m9qx4tz0a', 'demo', 'tiny', 'completed', 1, 2, 3, 0, 4, 5, 1, '{}', '{}', '{}', '{}', '{}',
        '{"steps_per_s":2.0}', '{}', 0, '{}', NULL, 77),
        ('gone00000000', 'demo', 'old', 'completed', 1, 2, 3, 0, 4, 5, 1, '{}', '{}', '{}', '{}', '{}', '{}', '{}', 0,
        '{}', 9, NULL);
    INSERT INTO record_files VALUES ('7k2m9qx4tz0a', 'a000-r00000.rec', 0, 0, 'worker', 100, 100, 5, x'00', 9, 0, 0, 0,
        1, 1);
    INSERT INTO metric_summaries VALUES ('7k2m9qx4tz0a', 'a000-r00000.rec', 'train/loss', 0, 0, 3, 0, 3, 1, 1, 2,
        x'000000000000f03f000000000000f03f0000000000000040');
    INSERT INTO run_metrics VALUES ('7k2m9qx4tz0a', 'train/loss', 3, 0, 3, 1, 1, 2,
        x'000000000000f03f000000000000f03f0000000000000040');
"""


@pytest.fixture
def old(place: Home) -> Home:
    """A home whose catalog is of revision 0001."""
    place.path.mkdir()
    engine = sqlite.create_engine(place.index, busy_timeout_s=1)
    sqlite.enable_wal(engine)
    migrating.migrate(engine, "0001")
    engine.dispose()
    connection = sqlite3.connect(place.index)
    connection.executescript(OLD_ROWS)
    connection.close()
    return place


def stored(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of a database, by table."""
    connection = sqlite3.connect(path)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    connection.close()
    return rows


def test_an_older_catalog_is_copied_and_migrated(old: Home) -> None:
    before = stored(old.index)
    with open_catalog(old) as catalog, catalog.read() as connection:
        (found,) = storing.load_runs(connection, ["7k2m9qx4tz0a"])
        states = storing.load_states(connection)
        files = storing.load_files(connection, "7k2m9qx4tz0a")
    assert stored(old.path / "index.db.before-0002") == before
    # What was known stands until the records are read again, which the next look does.
    assert (found.name, found.throughput, found.measured) == ("tiny", {"steps_per_s": 2.0}, {})
    assert found.metrics["train/loss"].max == 2.0
    assert files == {}
    assert states["7k2m9qx4tz0a"].settled_mtime_ns is None
    assert states["gone00000000"].deleted


def test_a_migrated_catalog_is_what_a_new_one_is(old: Home, tmp_path: Path) -> None:
    open_catalog(old).close()
    open_catalog(Home(tmp_path / "new")).close()
    assert tables_of(old.index) == tables_of(tmp_path / "new" / "index.db")


def tables_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {name: sorted(connection.execute(f"PRAGMA table_info({name})").fetchall()) for name in names}
    connection.close()
    return found


def test_a_migration_that_fails_leaves_the_catalog_as_it_was(old: Home) -> None:
    connection = sqlite3.connect(old.index)
    connection.execute("CREATE TABLE revisions (other TEXT)")  # in the way of the migration's second statement
    connection.close()
    before = stored(old.index)
    with pytest.raises(EnvironmentProblem) as caught:
        open_catalog(old)
    assert caught.value.code == "store-not-migrated"
    assert "0001 to 0002" in caught.value.what
    assert stored(old.index) == before
    assert stored(old.path / "index.db.before-0002") == before


def test_a_migration_that_dies_half_way_is_taken_back_from_the_copy(old: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_engine: sa.Engine) -> None:
        connection = sqlite3.connect(old.index)
        connection.executescript("DELETE FROM runs; DROP TABLE attempts; UPDATE alembic_version SET version_num = 'x';")
        connection.close()
        raise RuntimeError("half way")

    before = stored(old.index)
    monkeypatch.setattr(migrating, "migrate", die)
    with pytest.raises(EnvironmentProblem):
        open_catalog(old)
    assert stored(old.index) == before


def set_revision(path: Path, revision: str, gscalar: str | None = None) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    if gscalar is None:
        connection.execute("DROP TABLE revisions")  # so new that nobody knows where it is told
    else:
        connection.execute("INSERT INTO revisions VALUES (?, ?)", (revision, gscalar))
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


@pytest.mark.parametrize("sentence", MISMATCHES)
def test_a_database_that_is_not_what_it_says_is_damaged(sentence: str, place: Home) -> None:
    open_catalog(place).close()
    mismatch(place.index, MISMATCHES[sentence])
    before = stored(place.index)
    aside = opening.replace_damaged(place.index)
    assert aside is not None
    assert stored(aside) == before
    assert not place.index.exists()


@pytest.mark.parametrize("sentence", MISMATCHES)
def test_a_database_that_is_not_what_it_says_is_replaced_or_explained(sentence: str, place: Home) -> None:
    open_catalog(place).close()
    mismatch(place.index, MISMATCHES[sentence])
    with open_catalog(place) as catalog:
        if catalog.damaged_file is not None:
            add_a_run(catalog)
            return
        # An up-to-date one is opened with no look at its tables.
        with pytest.raises(EnvironmentProblem) as caught:
            add_a_run(catalog)
        assert caught.value.code == "catalog-damaged"


def add_a_run(catalog: Catalog) -> None:
    with catalog.write() as connection:
        storing.replace_run(connection, run())


def test_one_that_cannot_be_migrated_is_set_aside_only_when_that_is_asked(place: Home) -> None:
    open_catalog(place).close()
    mismatch(place.index, *OLDER.values())
    assert opening.replace_damaged(place.index) is None
    assert opening.replace_damaged(place.index, or_older=True) is not None


def test_a_newer_catalog_is_never_set_aside(place: Home) -> None:
    open_catalog(place).close()
    set_revision(place.index, "9999")
    assert opening.replace_damaged(place.index, or_older=True) is None


def test_a_wrong_statement_is_no_damage(place: Home) -> None:
    with open_catalog(place) as catalog, pytest.raises(sa.exc.OperationalError), catalog.read() as connection:
        connection.exec_driver_sql("SELECT nothing FROM nowhere")


def test_an_empty_catalog_makes_no_file(place: Home) -> None:
    with opening.empty_catalog(place) as catalog, catalog.read() as connection:
        assert storing.load_states(connection) == {}
    assert not place.path.exists()


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
