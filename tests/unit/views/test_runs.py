from __future__ import annotations

from collections.abc import Iterator

import pytest

from gscalar.control.indexer import refresh
from gscalar.state.catalog import Catalog, open_catalog
from gscalar.state.home import Home
from gscalar.testing.builders import FakeClock, write_run
from gscalar.views.runs import explain_nothing, list_runs
from gscalar.views.show import show_run


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    home = Home(tmp_path_factory.mktemp("home"))
    clock = FakeClock()
    write_run(home, "aaaa", spec={"name": "first"}, clock=clock)
    write_run(home, "bbbb", spec={"name": "second", "project": "other"}, status="failed", clock=clock)
    with open_catalog(home) as opened:
        refresh(home, opened)
        yield opened


def test_runs_are_shown_as_one_run_is_but_for_what_is_long_or_slow(catalog: Catalog) -> None:
    (got,) = list_runs(catalog, search=["first"])
    want = show_run(catalog.home, catalog, "aaaa")
    del want["spec"], want["environment"], want["exposed_split"]
    assert got == want


FOUND = {
    "all of them, the newest first": ({}, ["bbbb", "aaaa"]),
    "those that fit": ({"search": ["status=failed", "other"]}, ["bbbb"]),
    "in another order": ({"sort": "name"}, ["aaaa", "bbbb"]),
    "some of them": ({"limit": 1}, ["bbbb"]),
    "those of a project": ({"project": "demo"}, ["aaaa"]),
}


@pytest.mark.parametrize("sentence", FOUND)
def test_found(sentence: str, catalog: Catalog) -> None:
    options, want = FOUND[sentence]
    assert [run["id"] for run in list_runs(catalog, **options)] == want  # type: ignore[arg-type]


def test_why_nothing_was_found(catalog: Catalog) -> None:
    (got,) = explain_nothing(catalog, ["word", "val/los<3", "steps=1"])
    assert "val/loss" in got
