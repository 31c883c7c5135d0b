"""Runs come from a glance at the catalog where that will do, and else from a catalog that is caught up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gscalar.base.errors import UserError
from gscalar.cli import references
from gscalar.cli.references import find_runs, load_runs
from gscalar.control.indexer import refresh
from gscalar.state.catalog import open_catalog, storing
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home
from gscalar.testing.builders import FakeClock, RunBuilder, write_run


@pytest.fixture
def place(home: Path) -> Home:
    """A home with two runs of one name that have ended and one that goes on elsewhere, all in the catalog."""
    found = Home(home)
    clock = FakeClock()
    write_run(found, "aaaa00000000", spec={"name": "base"}, clock=clock)
    write_run(found, "bbbb00000000", spec={"name": "base"}, clock=clock)
    going(found, clock).train(3).abandon()
    catch_up(found)
    return found


def going(home: Home, clock: FakeClock) -> RunBuilder:
    return RunBuilder(home, "cccc00000000", spec={"name": "going"}, clock=clock).launch()


def catch_up(home: Home) -> None:
    with open_catalog(home) as catalog:
        refresh(home, catalog, is_alive=lambda _: True)


def grow(home: Home, run_id: str, num_bytes: int = 1) -> None:
    with home.run(run_id).worker_record(0, 0).open("ab") as file:
        file.write(b"\0" * num_bytes)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """How often the catalog was opened and caught up."""
    found: list[object] = []
    ask: Callable[..., list[RunSummary]] = references._ask

    def count(*words: object, **more: object) -> list[RunSummary]:
        found.append(words)
        return ask(*words, **more)

    monkeypatch.setattr(references, "_ask", count)
    monkeypatch.setattr("gscalar.control.liveness.is_alive", lambda _: True)
    return found


def same_as_caught_up(home: Home, got: list[RunSummary]) -> bool:
    with open_catalog(home) as catalog, catalog.read() as connection:
        return repr(got) == repr(storing.load_runs(connection, [run.id for run in got]))


def test_where_nothing_has_changed_a_glance_will_do(place: Home, asked: list[object]) -> None:
    words = ["base", "aaaa", "cccc00000000", "bbbb00000000"]
    home, got = load_runs(str(place.path), words)
    assert home == place
    assert [run.id for run in got] == ["bbbb00000000", "aaaa00000000", "cccc00000000"], "each once, in order"
    assert same_as_caught_up(place, got)
    assert not asked


def test_of_a_run_that_has_gone_on_the_newest_is_told(place: Home, asked: list[object]) -> None:
    RunBuilder(place, "aaaa00000000").edit("e1", tags={"late": "1"})
    _, (got,) = load_runs(str(place.path), ["aaaa"])
    assert got.tags["late"] == "1"
    assert len(asked) == 1


def test_runs_that_nobody_asks_for_may_go_on(place: Home, asked: list[object]) -> None:
    grow(place, "cccc00000000")
    _, got = load_runs(str(place.path), ["base"])
    assert [run.id for run in got] == ["bbbb00000000"]
    assert not asked


def test_a_run_whose_owner_may_have_died_is_looked_at(
    place: Home, asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gscalar.control.liveness.is_alive", lambda _: False)
    load_runs(str(place.path), ["going"])
    assert len(asked) == 1


def test_a_new_run_of_the_name_is_the_one_that_is_meant(place: Home, asked: list[object]) -> None:
    clock = FakeClock()
    clock.advance(1e6)
    write_run(place, "dddd00000000", spec={"name": "base"}, clock=clock)
    _, (got,) = load_runs(str(place.path), ["base"])
    assert got.id == "dddd00000000"
    assert len(asked) == 1


def test_a_run_whose_folder_is_gone_is_not_meant_any_more(place: Home, asked: list[object]) -> None:
    shutil.rmtree(place.run("bbbb00000000").path)
    _, (got,) = load_runs(str(place.path), ["base"])
    assert got.id == "aaaa00000000"
    assert asked


def test_a_name_alone_does_not_mean_a_run_whose_folder_is_gone(place: Home, asked: list[object]) -> None:
    shutil.rmtree(place.run("bbbb00000000").path)
    assert find_runs(str(place.path), ["base"])[1] == {"aaaa00000000": "base"}
    assert asked


def test_without_a_catalog_one_is_made(place: Home, asked: list[object]) -> None:
    for path in place.path.glob("index.db*"):
        path.unlink()
    _, (got,) = load_runs(str(place.path), ["base"])
    assert got.id == "bbbb00000000"
    assert asked


REFUSED = {"an unknown name": ("lagre", "run-not-found"), "an empty word": ("", "run-not-found")}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_not_found_is_explained(sentence: str, place: Home) -> None:
    reference, code = REFUSED[sentence]
    for find in (load_runs, find_runs):
        with pytest.raises(UserError) as caught:
            find(str(place.path), [reference])  # type: ignore[operator]
        assert caught.value.code == code


# ---- names alone


def test_a_name_needs_no_run_that_is_up_to_date(place: Home, asked: list[object]) -> None:
    grow(place, "cccc00000000")
    assert find_runs(str(place.path), ["going", "aaaa"]) == (
        place,
        {"cccc00000000": "going", "aaaa00000000": "base"},
    )
    assert not asked


def test_whole_ids_need_no_catalog(place: Home, asked: list[object]) -> None:
    place.index.write_bytes(b"broken")
    assert find_runs(str(place.path), ["aaaa00000000"])[1] == {"aaaa00000000": "base"}
    assert not asked


def test_a_second_word_that_is_no_run_may_be_a_metric(place: Home) -> None:
    with pytest.raises(UserError) as caught:
        find_runs(str(place.path), ["base", "train/loss"])
    assert "--name" in caught.value.next_step
