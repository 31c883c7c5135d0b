from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gscalar.base.errors import EnvironmentProblem
from gscalar.control import indexer
from gscalar.control.deleting import delete_run
from gscalar.control.indexer import Indexer, rebuild, refresh
from gscalar.control.indexing import freshness
from gscalar.control.indexing.run_index import RunIndex
from gscalar.control.indexing.series_index import SeriesIndex, refresh_series
from gscalar.state.catalog import Catalog, migrating, open_catalog, sqlite, storing
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home
from gscalar.state.records.reader import RecordTail
from gscalar.state.series import open_series
from gscalar.testing.builders import DEFAULT_RUN_ID, RunBuilder, write_run
from gscalar.testing.catalog_damage import MISMATCHES, OLDER, damage_table, mismatch


@pytest.fixture
def place(home: Path) -> Home:
    return Home(home)


@pytest.fixture
def catalog(place: Home) -> Iterator[Catalog]:
    with open_catalog(place) as opened:
        yield opened


def alive(owner: Mapping[str, Any]) -> bool:
    return True


def dead(owner: Mapping[str, Any]) -> bool:
    return False


def load(catalog: Catalog) -> dict[str, RunSummary]:
    with catalog.read() as connection:
        states = storing.load_states(connection)
        runs = storing.load_runs(connection, [each for each, state in states.items() if not state.deleted])
    return {run.id: run for run in runs}


def test_runs_that_are_there_come_into_the_catalog(place: Home, catalog: Catalog) -> None:
    write_run(place, "one")
    write_run(place, "two", status="failed")
    refresh(place, catalog)
    assert {run.id: run.status for run in load(catalog).values()} == {"one": "completed", "two": "failed"}


def test_a_home_without_a_run_folder_is_empty(place: Home, catalog: Catalog) -> None:
    refresh(place, catalog)
    assert load(catalog) == {}


def test_one_run_alone_can_be_refreshed(place: Home, catalog: Catalog) -> None:
    write_run(place, "one")
    write_run(place, "two")
    refresh(place, catalog, "two")
    assert list(load(catalog)) == ["two"]


def test_refreshing_again_changes_nothing(place: Home, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(place)
    refresh(place, catalog)
    before = load(catalog)
    monkeypatch.setattr(RunIndex, "catch_up", lambda *_: pytest.fail("read again"))
    refresh(place, catalog)
    assert load(catalog) == before


def test_what_is_appended_is_added(place: Home, catalog: Catalog) -> None:
    run = RunBuilder(place).launch(2).train(3)
    refresh(place, catalog)
    run.train(2)
    refresh(place, catalog)
    got = load(catalog)[run.run_id]
    run.abandon()
    assert (got.steps, got.metrics["train/loss"].count, got.tokens) == (5, 5, 5 * 1024.0)


def test_a_batch_is_smaller_than_a_file(place: Home, catalog: Catalog) -> None:
    write_run(place, world=2, steps=50)
    for max_frames in (1, 7, 20_000):
        with catalog.write() as connection:
            storing.forget_all(connection)
        RunIndex(place, DEFAULT_RUN_ID, alive).catch_up(catalog, max_frames=max_frames)
        got = load(catalog)[DEFAULT_RUN_ID]
        assert (got.status, got.steps, got.metrics["train/loss"].count) == ("completed", 50, 50)


def test_a_run_is_never_interrupted_while_there_is_more_to_read(
    place: Home, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(place, steps=50, alone=True)
    seen = []
    store = storing.replace_run
    monkeypatch.setattr(
        storing, "replace_run", lambda connection, run: (seen.append(run.status), store(connection, run))
    )
    RunIndex(place, DEFAULT_RUN_ID, dead).catch_up(catalog, max_frames=10)
    assert set(seen) == {"running", "completed"}


def test_a_run_whose_owner_died_is_interrupted(place: Home, catalog: Catalog) -> None:
    run = RunBuilder(place).launch().train(3).abandon()
    refresh(place, catalog, is_alive=alive)
    assert load(catalog)[run.run_id].status == "running"
    refresh(place, catalog, is_alive=dead)
    got = load(catalog)[run.run_id]
    assert (got.status, got.attempts[0].outcome) == ("interrupted", "killed")
    assert got.ended_ns == got.last_seen_ns


def test_what_the_owner_wrote_until_it_died_is_read_before_it_is_judged(place: Home, catalog: Catalog) -> None:
    run = RunBuilder(place).launch().train(3)

    def end_then_die(owner: Mapping[str, Any]) -> bool:
        if run.workers:
            run.finish().end()
        return False

    refresh(place, catalog, is_alive=end_then_die)
    assert load(catalog)[run.run_id].status == "completed"


def test_the_owner_is_asked_about_by_host_pid_and_start(place: Home, catalog: Catalog) -> None:
    RunBuilder(place).launch().abandon()
    asked: list[Mapping[str, Any]] = []
    refresh(place, catalog, is_alive=lambda owner: not asked.append(owner))
    assert asked[0] == {"host": "builder", "pid": 4242, "pid_start": 1.0}


def test_superseded_steps_leave_the_summaries(place: Home, catalog: Catalog) -> None:
    run = RunBuilder(place).launch(2).train(5).log({"a": 100.0}).checkpoint()
    refresh(place, catalog)
    assert load(catalog)[run.run_id].metrics["a"].max == 100.0
    run.end_attempt("killed").launch(2, from_step=2).train(1).log({"a": 1.0})
    refresh(place, catalog)
    got = load(catalog)[run.run_id]
    run.abandon()
    assert (got.steps, got.metrics["a"].max, got.metrics["train/loss"].count) == (3, 1.0, 3)
    assert got.checkpoints == ()


def test_an_edit_changes_tags(place: Home, catalog: Catalog) -> None:
    run = RunBuilder(place).launch().train(1).finish().end()
    refresh(place, catalog)
    run.edit("e1", tags={"stage": "final", "team": None})
    refresh(place, catalog)
    assert load(catalog)[run.run_id].tags == {"stage": "final"}


SETTLED_NS = 10**18 * 4  # far after any file's time


def test_a_run_that_has_settled_costs_one_look(place: Home, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(place)
    for _ in range(2):
        refresh(place, catalog, clock_ns=lambda: SETTLED_NS)
    monkeypatch.setattr(freshness, "scan_records", lambda *_: pytest.fail("scanned"))
    refresh(place, catalog, clock_ns=lambda: SETTLED_NS)
    monkeypatch.undo()
    # A new file wakes it.
    os.utime(folder.records, ns=(1, 1))
    RunBuilder.edit(woken(place), "e1", tags={"late": "1"})
    refresh(place, catalog, clock_ns=lambda: SETTLED_NS)
    assert load(catalog)[DEFAULT_RUN_ID].tags["late"] == "1"


def woken(place: Home) -> RunBuilder:
    return RunBuilder(place)


def test_a_run_that_goes_on_never_settles(place: Home, catalog: Catalog) -> None:
    run = RunBuilder(place).launch().train(1)
    for _ in range(3):
        refresh(place, catalog, is_alive=alive, clock_ns=lambda: SETTLED_NS)
    run.train(1)
    refresh(place, catalog, is_alive=alive, clock_ns=lambda: SETTLED_NS)
    got = load(catalog)[run.run_id]
    run.abandon()
    assert got.steps == 2


def test_a_folder_that_is_gone_leaves_the_catalog(place: Home, catalog: Catalog) -> None:
    folder = write_run(place, "one")
    write_run(place, "two")
    refresh(place, catalog)
    shutil.rmtree(folder.path)
    refresh(place, catalog)
    assert list(load(catalog)) == ["two"]


def test_a_home_that_cannot_be_listed_says_nothing_of_its_runs(place: Home, catalog: Catalog) -> None:
    write_run(place)
    refresh(place, catalog)
    place.runs.rename(place.path / "unmounted")
    refresh(place, catalog)
    assert list(load(catalog)) == [DEFAULT_RUN_ID]


def test_a_deleted_run_does_not_come_back(place: Home, catalog: Catalog) -> None:
    write_run(place)
    refresh(place, catalog)
    with catalog.write() as connection:
        storing.mark_deleted(connection, DEFAULT_RUN_ID, 7)
    refresh(place, catalog)
    assert load(catalog) == {}
    rebuild(place)
    assert load(catalog) == {}


STRANGE = {
    "a folder that is no run": lambda home: (home.runs / "notes").mkdir(parents=True),
    "a file among the runs": lambda home: (home.runs / "README").write_text("x"),
    "a hidden folder": lambda home: (home.runs / ".deleted-x").mkdir(parents=True),
    "a job that is no JSON": lambda home: write_job(home, b"{"),
    "a job that is a list": lambda home: write_job(home, b"[]"),
    "a job without a project": lambda home: write_job(home, b'{"created_ns": 1}'),
    "a job whose time is a word": lambda home: write_job(home, b'{"project": "p", "created_ns": "x"}'),
}


def write_job(home: Home, content: bytes) -> None:
    folder = home.run("strange")
    folder.create()
    folder.job_file.write_bytes(content)


@pytest.mark.parametrize("sentence", STRANGE)
def test_strange_things_in_the_home_hide_no_run(sentence: str, place: Home, catalog: Catalog) -> None:
    write_run(place)
    STRANGE[sentence](place)
    refresh(place, catalog)
    assert list(load(catalog)) == [DEFAULT_RUN_ID]


def test_a_job_that_no_database_can_hold_hides_no_other_run(place: Home, catalog: Catalog) -> None:
    write_run(place)
    write_job(place, json.dumps({"project": "p\ud800", "name": "n", "created_ns": 10**30, "spec": {}}).encode())
    refresh(place, catalog)
    assert DEFAULT_RUN_ID in load(catalog)


def test_a_run_that_is_queued_has_a_job_and_no_record(place: Home, catalog: Catalog) -> None:
    run = RunBuilder(place)
    refresh(place, catalog)
    got = load(catalog)[run.run_id]
    assert (got.status, got.world, got.attempts) == ("queued", 1, ())


def test_a_record_with_a_damaged_head_still_has_its_place(place: Home, catalog: Catalog) -> None:
    folder = write_run(place)
    path = folder.worker_record(0, 0)
    with path.open("r+b") as file:
        file.write(b"\xff" * 12)
    refresh(place, catalog)
    got = load(catalog)[DEFAULT_RUN_ID]
    assert (got.steps, got.status) == (5, "completed")
    assert got.damage["files"] == ["a000-r00000.rec"]


def test_a_file_that_has_become_shorter_is_read_again(place: Home, catalog: Catalog) -> None:
    run = RunBuilder(place).launch().train(10)
    path = run.folder.worker_record(0, 0)
    refresh(place, catalog, is_alive=alive)
    run.abandon()
    os.truncate(path, path.stat().st_size // 2)
    refresh(place, catalog, is_alive=alive)
    got = load(catalog)[run.run_id]
    assert 0 < got.steps < 10
    assert got.metrics["train/loss"].count == got.steps


# ---- rebuild


def test_a_rebuilt_catalog_is_the_same(place: Home, catalog: Catalog) -> None:
    write_run(place, "one", world=2)
    write_run(place, "two", alone=True, status="failed")
    refresh(place, catalog)
    before = load(catalog)
    assert rebuild(place) == 2
    assert load(catalog) == before


def test_a_catalog_that_is_damaged_inside_is_rebuilt(place: Home) -> None:
    write_run(place)
    with open_catalog(place) as catalog:
        refresh(place, catalog)
    damage_table(place.index, "runs")
    assert rebuild(place) == 1
    assert len(list(place.path.glob("index.db.damaged-*"))) == 1


@pytest.mark.parametrize("sentence", MISMATCHES | OLDER)
def test_a_catalog_that_is_not_what_it_says_is_rebuilt(sentence: str, place: Home) -> None:
    write_run(place)
    rebuild(place)
    mismatch(place.index, (MISMATCHES | OLDER)[sentence])
    assert [rebuild(place), rebuild(place)] == [1, 1]
    assert len(list(place.path.glob("index.db.damaged-*"))) == 1


def test_a_newer_catalog_is_not_rebuilt(place: Home) -> None:
    rebuild(place)
    mismatch(place.index, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(EnvironmentProblem, match="newer version"):
        rebuild(place)
    assert not list(place.path.glob("index.db.damaged-*"))


# ---- two at once


def test_whoever_is_overtaken_reads_on_from_there(place: Home, catalog: Catalog) -> None:
    run = RunBuilder(place).launch(2).train(3)
    first, second = RunIndex(place, run.run_id, alive), RunIndex(place, run.run_id, alive)
    for index in (first, second):
        index.catch_up(catalog)
    for turn in range(6):
        run.train(1)
        (first, second)[turn % 2].catch_up(catalog)
    got = load(catalog)[run.run_id]
    run.abandon()
    assert (got.steps, got.metrics["train/loss"].count, got.tokens) == (9, 9, 9 * 1024.0)


# ---- while a run goes on


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def free() -> float:
    return 0.0


def test_a_tick_that_takes_much_of_a_core_is_followed_by_a_longer_pause(place: Home, catalog: Catalog) -> None:
    # 20 ms of CPU: at 1/150 of a core that is 3 s. A tick of 1 s would ask for 150 s, and gets 5 s.
    for cpu_s, want in ((0.02, [1, 1, 3]), (1.0, [1, 1, 1, 4])):
        run_id, clock, spent = f"run{cpu_s}", Clock(), iter([0.0, cpu_s] * 9)
        run = RunBuilder(place, run_id).launch()
        keeper = Indexer(place, run_id, is_alive=alive, clock=clock, cpu_clock=lambda spent=spent: next(spent))
        got = []
        for now_s in (0.0, 2.9, 3.1, 5.1)[: len(want)]:
            clock.now_s = now_s
            run.train(1)
            keeper.tick()
            got.append(load(catalog)[run_id].steps)
        keeper.close()
        run.abandon()
        assert got == want


def test_the_series_are_kept_too_and_their_trouble_is_told(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunBuilder(place).launch().train(3)
    with closing(Indexer(place, run.run_id, is_alive=alive)) as keeper:
        keeper.tick()
        with open_series(place, run.run_id) as reader:
            assert reader.points("metric", "train/loss", 0).steps.tolist() == [1, 2, 3]
    monkeypatch.setattr(SeriesIndex, "catch_up", fails_with(EnvironmentProblem(code="disk-full", what="It is full.")))
    with closing(Indexer(place, run.run_id, is_alive=alive)) as keeper:
        keeper.tick()
        assert keeper.problem == "It is full."
    run.abandon()


def test_series_go_with_their_run_and_with_a_rebuild(place: Home, catalog: Catalog) -> None:
    for run_id in ("one", "two", "three"):
        write_run(place, run_id)
        refresh_series(place, run_id)
    refresh(place, catalog)
    delete_run(place, catalog, "one")
    shutil.rmtree(place.run("two").path)
    refresh(place, catalog)
    assert [path.name for path in sorted(place.series("x").parent.glob("*.db"))] == ["three.db"]
    rebuild(place)
    assert list(place.series("x").parent.glob("*.db*")) == []
    refresh_series(place, "one")
    assert list(place.series("x").parent.glob("*.db*")) == [], "a run that is gone got a store"


def test_a_tick_looks_at_most_once_a_second(place: Home, catalog: Catalog) -> None:
    clock = Clock()
    run = RunBuilder(place).launch()
    keeper = Indexer(place, run.run_id, is_alive=alive, clock=clock, cpu_clock=free)
    steps = []
    for now_s in (0.0, 0.4, 0.9, 1.0, 1.5):
        clock.now_s = now_s
        run.train(1)
        keeper.tick()
        steps.append(load(catalog)[run.run_id].steps)
    keeper.close()
    run.abandon()
    assert steps == [1, 1, 1, 4, 4]
    assert load(catalog)[run.run_id].steps == 5


def test_a_tick_never_raises_and_says_what_is_wrong(
    place: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    run = RunBuilder(place).launch().train(1)
    keeper = Indexer(place, run.run_id, is_alive=alive, clock=clock, cpu_clock=free)
    problem = EnvironmentProblem(code="disk-full", what="The disk is full.")
    monkeypatch.setattr(indexer, "open_catalog", fails_with(problem))
    keeper.tick()
    assert keeper.problem == "The disk is full."
    monkeypatch.undo()
    clock.now_s = 2.0
    keeper.tick()
    assert keeper.problem is None
    keeper.close()
    run.abandon()
    assert len(caplog.records) == 1


def fails_with(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_an_index_that_was_deleted_is_made_anew(place: Home) -> None:
    clock = Clock()
    run = RunBuilder(place).launch().train(1)
    keeper = Indexer(place, run.run_id, is_alive=alive, clock=clock, cpu_clock=free)
    keeper.tick()
    for path in place.path.glob("index.db*"):
        path.unlink()
    clock.now_s = 2.0
    keeper.tick()
    keeper.close()
    with open_catalog(place) as catalog:
        got = load(catalog)
    run.abandon()
    assert got[run.run_id].steps == 1


def test_a_catalog_of_an_older_version_is_read_anew_from_the_records(place: Home) -> None:
    accounts = [{"compute": 0.1}]
    run = RunBuilder(place).launch().train(3, accounts=accounts).finish().end()
    place.index.parent.mkdir(parents=True, exist_ok=True)
    engine = sqlite.create_engine(place.index, busy_timeout_s=1)
    migrating.migrate(engine, "0001")
    engine.dispose()
    old = sqlite3.connect(place.index)
    # As revision 0001 left an ended run: read to its end, with nothing of what is measured since.
    folder = run.folder.records
    old.execute(
        "INSERT INTO runs (id, project, name, status, created_ns, steps, total_steps, tokens, samples, world, spec,"
        " origins, environment, facts, digests, throughput, nonfinite, num_dropped, damage, settled_mtime_ns)"
        " VALUES (?, 'demo', 'tiny', 'completed', 1, 3, 0, 0, 0, 1, '{}', '{}', '{}', '{}', '{}', '{}', '{}', 0, '{}',"
        " ?)",
        (run.run_id, folder.stat().st_mtime_ns),
    )
    for path in folder.iterdir():
        status = path.stat()
        row = (run.run_id, path.name, status.st_size, status.st_size, status.st_mtime_ns)
        old.execute("INSERT INTO record_files VALUES (?, ?, 0, 0, 'worker', ?, ?, ?, x'00', 1, 0, 0, 0, 1, 1)", row)
    old.commit()
    old.close()
    with open_catalog(place) as catalog:
        refresh(place, catalog)
        found = load(catalog)[run.run_id]
    assert found.measured["accounts"]["compute"]["mean"] == pytest.approx(0.1)
    assert found.metrics["train/loss"].count == 3


def test_a_record_that_cannot_be_read_for_a_while_is_read_later(
    place: Home, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tail: RecordTail, max_frames: int = 0) -> list[object]:
        raise OSError(5, "Input/output error")

    write_run(place, "one")
    with monkeypatch.context() as broken:
        broken.setattr(RecordTail, "poll", refuse)
        refresh(place, catalog)
    refresh(place, catalog)
    assert load(catalog)["one"].status == "completed"
