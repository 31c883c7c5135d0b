from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from gscalar.base.errors import UserError
from gscalar.state.catalog import Catalog, open_catalog, storing
from gscalar.state.catalog.rows import MetricSummary, ParamRow, RunSummary
from gscalar.state.catalog.searching import Comparison, find_runs, parse_term, unknown_key
from gscalar.state.home import Home

DAY_NS = 86_400_000_000_000
NEW_YEAR_NS = 1_767_225_600_000_000_000  # 2026-01-01 UTC


def run(run_id: str, day: int, *, loss: float | None = None, lr: float = 1e-3, **fields: object) -> RunSummary:
    metrics = {} if loss is None else {"val/loss": one_value(loss)}
    params = (
        ParamRow(key="config.lr", value=repr(lr), number=lr, origin="spec"),
        ParamRow(key="config.optimizer", value="adamw", number=None, origin="spec"),
        ParamRow(key="plan.accumulate", value="4", number=4.0, origin="flag"),
    )
    given = {"project": "lm", "name": "base", "status": "completed", "seed": 1} | fields
    return RunSummary(  # type: ignore[arg-type]
        id=run_id, created_ns=NEW_YEAR_NS + day * DAY_NS, metrics=metrics, params=params, **given
    )


def one_value(value: float) -> MetricSummary:
    num_nan = int(math.isnan(value))
    return MetricSummary(count=1, num_nan=num_nan, last_step=1, last=value, least=value, greatest=value)


RUNS = (
    run("aaaa", 0, loss=3.5, steps=100, tags={"team": "vision", "stage": "draft"}),
    run("bbbb", 1, loss=2.5, lr=3e-4, name="Large_1", steps=200, tags={"team": "language"}),
    run("cccc", 2, status="failed", project="other", seed=None, steps=5),
    run("dddd", 3, loss=math.nan, name="large%1", status="running", world=4),
    run("eeee", 4, loss=math.inf),
)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with open_catalog(Home(tmp_path_factory.mktemp("home"))) as opened:
        with opened.write() as connection:
            for each in RUNS:
                storing.replace_run(connection, each)
            storing.replace_run(connection, run("ffff", 5, loss=1.0))
            storing.mark_deleted(connection, "ffff", 1)
        yield opened


def find(catalog: Catalog, *texts: str, **options: object) -> str:
    with catalog.read() as connection:
        found = find_runs(connection, [parse_term(text) for text in texts], **options)  # type: ignore[arg-type]
    return "".join(run_id[0] for run_id in found)


SEARCHES: dict[str, tuple[list[str], str]] = {
    "nothing finds all but deleted ones, newest first": ([], "edcba"),
    "a word finds a part of a name, whatever its case": (["LARGE"], "db"),
    "a word finds a project": (["oth"], "c"),
    "a word finds a tag's value": (["language"], "b"),
    "a word finds a tag's key": (["stage"], "a"),
    "a word finds a status": (["failed"], "c"),
    "a word finds the start of an id": (["bb"], "b"),
    "a percent sign is no wildcard": (["large%"], "d"),
    "a percent sign alone is no wildcard": (["%"], "d"),
    "an underscore is no wildcard": (["large_"], "b"),
    "all terms must hold": (["team=language", "completed"], "b"),
    "contradictions find nothing": (["completed", "failed"], ""),
    "a tag is compared": (["team=vision"], "a"),
    "a tag is named as one": (["tag.team!=vision"], "b"),
    "a metric is below a number": (["val/loss<3.0"], "b"),
    "NaN is neither below nor above": (["val/loss>=0"], "eba"),
    "infinity is above": (["val/loss>1e300"], "e"),
    "a value of the spec is compared as a number": (["config.lr>=1e-3"], "edca"),
    "a number may be written in another way": (["config.lr=0.0003"], "b"),
    "config may be left out": (["lr=3e-4"], "b"),
    "a value of the spec is compared as text": (["config.optimizer=adamw", "vision"], "a"),
    "unequal needs the key to be there": (["team!=vision"], "b"),
    "unequal is false for NaN's equals": (["val/loss!=2.5"], "eda"),
    "an attribute is compared": (["steps>=100"], "ba"),
    "a missing attribute fits nothing": (["seed!=7"], "edba"),
    "the world is compared": (["world=4"], "d"),
    "a status is compared": (["status!=completed"], "dc"),
    "two equal signs are one": (["status==failed"], "c"),
    "a date is compared": (["created>=2026-01-04T00:00:00+00:00"], "ed"),
    "blanks around the operator do not matter": (["val/loss < 3.0"], "b"),
    "a key that no run has finds nothing": (["no/such<3"], ""),
    "an empty value is a value": (["team="], ""),
}


@pytest.mark.parametrize("sentence", SEARCHES)
def test_search(sentence: str, catalog: Catalog) -> None:
    terms, want = SEARCHES[sentence]
    assert find(catalog, *terms) == want


SORTS: dict[str, tuple[str, str]] = {
    "oldest first": ("created", "abcde"),
    "newest first": ("-created", "edcba"),
    "by name, the newest of equals first": ("name", "becad"),
    "by steps, most first": ("-steps", "bacde"[:3] + "ed"),
    "by a metric, runs without a number last": ("val/loss", "baedc"),
    "by a metric downwards, runs without a number last": ("-val/loss", "eabdc"),
    "by a value of the spec": ("config.lr", "bedca"),
    "by a value without its config": ("lr", "bedca"),
}


@pytest.mark.parametrize("sentence", SORTS)
def test_sort(sentence: str, catalog: Catalog) -> None:
    sort, want = SORTS[sentence]
    assert find(catalog, sort=sort) == want


def test_limit_and_project(catalog: Catalog) -> None:
    assert find(catalog, project="lm", limit=2) == "ed"
    assert find(catalog, project="other") == "c"


BAD: dict[str, tuple[list[str], str, str]] = {
    "a comparison without a key": (["<3"], "-created", "key=value"),
    "an order of texts": (["name<large"], "-created", "name=large"),
    "a number that is none": (["steps>many"], "-created", "steps<3.0"),
    "a metric below a word": (["val/loss<low"], "-created", "val/loss<3.0"),
    "a status that does not exist": (["status=complete"], "-created", "completed"),
    "a date that is none": (["created>yesterday"], "-created", "2026-01-31"),
    "a date that no other zone has": (["created>0001-01-01T00:00+14:00"], "-created", "2026-01-31"),
    "an order by nothing": ([], "val/los", "val/loss"),
    "an order by an attribute with a slip": ([], "-craeted", "created"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_refused(sentence: str, catalog: Catalog) -> None:
    terms, sort, hint = BAD[sentence]
    with pytest.raises(UserError) as caught:
        find(catalog, *terms, sort=sort)
    assert caught.value.code == "bad-query"
    assert hint in caught.value.next_step


def test_values_beyond_what_the_catalog_can_hold_are_its_ends(catalog: Catalog) -> None:
    everything = find(catalog)
    assert find(catalog, "created<9999-12-30", "created>0001-01-03", "steps<1e999") == everything
    with catalog.read() as connection:
        assert len(find_runs(connection, (), limit=10**30)) == len(everything)


HINTS: dict[str, tuple[str, str | None]] = {
    "a slip in a metric offers the nearest": ("val/los<3", "the nearest is val/loss"),
    "a known metric": ("val/loss<3", None),
    "a known value without its config": ("lr=3", None),
    "an attribute": ("steps=3", None),
    "a word": ("anything", None),
}


@pytest.mark.parametrize("sentence", HINTS)
def test_a_key_that_no_run_has_is_told(sentence: str, catalog: Catalog) -> None:
    text, want = HINTS[sentence]
    with catalog.read() as connection:
        got = unknown_key(connection, parse_term(text))
    assert got is None if want is None else want in str(got)


def test_a_value_may_hold_operators() -> None:
    assert parse_term("note=a<b=c") == Comparison(key="note", operator="=", value="a<b=c")


def test_every_search_is_a_query_that_postgresql_takes(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def compile_for_postgresql(query: sa.Select[tuple[str]]) -> list[str]:
        seen.append(str(query.compile(dialect=postgresql.dialect())))
        return []

    with catalog.read() as connection:
        monkeypatch.setattr(connection, "scalars", compile_for_postgresql)
        for terms, _ in SEARCHES.values():
            find_runs(connection, [parse_term(text) for text in terms], sort="-steps", limit=3)
    assert len(seen) == len(SEARCHES)


def test_the_catalog_is_not_needed_to_parse(tmp_path: Path) -> None:
    assert parse_term("  large ") == "large"
