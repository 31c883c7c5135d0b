from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gscalar.control.indexer import refresh
from gscalar.model import events
from gscalar.state.catalog import open_catalog, storing
from gscalar.state.home import Home
from gscalar.testing.builders import RunBuilder
from gscalar.views.compare import (
    compare_configuration,
    compare_digests,
    compare_runs,
    data_order,
    find_better,
    flatten,
    ratios,
    unlike_reason,
)
from gscalar.views.describing import describe_run
from gscalar.views.metrics import fresh_series


def a_run(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": "aaaa", "name": "base", "project": "demo", "seed": 7, "world": 1, "steps": 5, "tags": {}, "facts": {},
        "spec": {"name": "base", "project": "demo", "config": {"lr": 0.1}},
        "digests": {"weights": None, "data": "cd", "spec": "ef"},
        "environment": {"packages": {"torch": "2.0"}, "git": {"commit": "abc"}},
    }  # fmt: skip
    return found | changes


DIFFERENCES: dict[str, tuple[dict[str, Any], list[tuple[str, str, list[Any]]]]] = {
    "nothing": ({}, []),
    "a hyperparameter": (
        {"spec": {"config": {"lr": 0.2}}},
        [("spec", "config.lr", [0.1, 0.2])],
    ),
    "a key that one has": (
        {"spec": {"config": {"lr": 0.1, "layers": 2}}},
        [("spec", "config.layers", [None, 2])],
    ),
    "a name alone is no difference": ({"spec": {"name": "other", "config": {"lr": 0.1}}, "name": "other"}, []),
    "a tag": ({"tags": {"team": "vision"}}, [("spec", "tags.team", [None, "vision"])]),
    "a package": (
        {"environment": {"packages": {"torch": "2.1"}, "git": {"commit": "abc"}}},
        [("packages", "packages.torch", ["2.0", "2.1"])],
    ),
    "a commit": (
        {"environment": {"packages": {"torch": "2.0"}, "git": {"commit": "def", "branch": "mine"}}},
        [("code", "git.commit", ["abc", "def"])],
    ),
    "a GPU": (
        {"environment": {"packages": {"torch": "2.0"}, "git": {"commit": "abc"}, "gpus": [{"name": "H200"}]}},
        [("machine", "gpus.0.name", [None, "H200"])],
    ),
    "what the launcher sets is no difference": (
        {"environment": a_run()["environment"] | {"variables": {"GSCALAR_RANK": "0", "OMP_NUM_THREADS": "1"}}},
        [("variables", "variables.OMP_NUM_THREADS", [None, "1"])],
    ),
    "the number of parameters": ({"facts": {"parameters": 10}}, [("model", "parameters", [None, 10])]),
}


@pytest.mark.parametrize("sentence", DIFFERENCES)
def test_what_differs_is(sentence: str) -> None:
    changes, want = DIFFERENCES[sentence]
    got = compare_configuration([a_run(), a_run(**changes)], everything=False)
    assert [(each["section"], each["key"], each["values"]) for each in got] == want
    assert not any(each["equal"] for each in got)


def test_everything_has_the_equal_values_too() -> None:
    got = compare_configuration([a_run(), a_run(tags={"a": "b"})], everything=True)
    assert {each["key"]: each["equal"] for each in got} == {
        "config.lr": True,
        "tags.a": False,
        "git.commit": True,
        "packages.torch": True,
    }


def test_nan_is_no_difference_to_nan() -> None:
    runs = [a_run(spec={"config": {"clip": float("nan")}}) for _ in range(2)]
    assert compare_configuration(runs, everything=False) == []


@pytest.mark.parametrize(("first", "second"), [(1.0, 1), (1, True), ("1", 1)])
def test_what_only_python_takes_for_equal_is_a_difference(first: Any, second: Any) -> None:
    runs = [a_run(spec={"config": {"x": value}}) for value in (first, second)]
    assert [each["values"] for each in compare_configuration(runs, everything=False)] == [[first, second]]


def test_a_list_is_one_value_unless_it_holds_mappings() -> None:
    assert dict(flatten({"a": [1, 2], "b": [{"c": 1}, {"c": 2}], "d": {}})) == {"a": [1, 2], "b.0.c": 1, "b.1.c": 2}


BETTER: dict[str, tuple[list[float | None], str | None, int | None]] = {
    "the lower of losses": ([0.5, 0.4], "down", 1),
    "the higher of accuracies": ([0.5, 0.4], "up", 0),
    "neither where the direction is not known": ([0.5, 0.4], None, None),
    "neither where both are equal": ([0.5, 0.5], "down", None),
    "neither where only one has a value": ([0.5, None], "down", None),
    "the lowest of three": ([0.5, None, 0.3], "down", 2),
    "infinity is worse than a number": ([math.inf, 0.3], "down", 1),
}


@pytest.mark.parametrize("sentence", BETTER)
def test_better_is(sentence: str) -> None:
    values, direction, want = BETTER[sentence]
    cells = [None if value is None else {"best": value} for value in values]
    assert find_better(cells, direction) == want


def test_ratios_are_to_the_first() -> None:
    assert ratios([2.0, 3.0, None]) == [1.0, 1.5, None]
    assert ratios([0.0, 3.0]) == [None, None]
    assert ratios([None, 3.0]) == [None, None]


UNLIKE: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "equal in all": ({}, None, "equal"),
    "another seed": ({"seed": 8}, "seed", "equal"),
    "another number of workers": ({"world": 2}, "world", "equal"),
    "other data in as many steps": ({"digests": {"data": "xx"}}, "data", "different"),
    "fewer steps, so that the digest says nothing": ({"digests": {"data": "xx"}, "steps": 3}, None, "unknown"),
    "not finished": ({"digests": {"data": None}}, None, "unknown"),
}


@pytest.mark.parametrize("sentence", UNLIKE)
def test_runs_are_compared_step_by_step_unless(sentence: str) -> None:
    changes, reason, order = UNLIKE[sentence]
    assert unlike_reason(a_run(), a_run(**changes)) == reason
    assert data_order(a_run(), a_run(**changes)) == order


def test_runs_without_a_seed_are_not_compared() -> None:
    assert unlike_reason(a_run(seed=None), a_run(seed=None)) == "seed"


def test_digests_are_equal_only_where_all_are_known() -> None:
    got = compare_digests([a_run(), a_run(digests={"weights": "x", "data": "cd", "spec": "other"})])
    assert {name: each["equal"] for name, each in got.items()} == {"weights": None, "data": True, "spec": False}


# ---- of real records


def compare(home: Path, *run_ids: str) -> dict[str, Any]:
    place = Home(home)
    with open_catalog(place) as catalog:
        refresh(place, catalog)
        with catalog.read() as connection:
            runs = [describe_run(place, each) for each in storing.load_runs(connection, run_ids)]
    with fresh_series(place, run_ids[0], "a") as first, fresh_series(place, run_ids[1], "b") as second:
        return compare_runs(runs, [first, second])


def test_a_run_that_was_killed_and_resumed_is_equal_to_one_that_was_not(home: Path) -> None:
    whole = RunBuilder(Home(home), "aaaa").launch().train(8).finish().end()
    broken = RunBuilder(Home(home), "bbbb").launch().train(4).checkpoint().train(2, first_loss=99.0)
    broken.end_attempt("killed").launch(from_step=4).train(4).finish().end()
    assert whole.run_id == "aaaa"
    (got,) = compare(home, "aaaa", "bbbb")["divergence"]
    assert got == {
        "run": "bbbb", "compared": True, "reason": None, "data_order": "equal", "step": None, "metrics": [],
        "names": ["train/loss", "train/lr"], "num_points": 16, "last_step": 8, "exact": True,
    }  # fmt: skip


def test_the_first_step_that_differs_is_told_with_both_values(home: Path) -> None:
    RunBuilder(Home(home), "aaaa").launch().train(8).finish().end()
    other = RunBuilder(Home(home), "bbbb").launch().train(3)
    other.train(5, first_loss=math.nextafter(4.0, 5)).finish("ef" * 32).end()
    found = compare(home, "aaaa", "bbbb")
    (got,) = found["divergence"]
    assert (got["step"], [each["name"] for each in got["metrics"]]) == (4, ["train/loss"])
    assert got["metrics"][0]["values"] == [1.0, math.nextafter(4.0, 5) / 4]
    assert found["digests"]["weights"]["equal"] is False


def test_metrics_stand_side_by_side_with_their_best_steps(home: Path) -> None:
    first = RunBuilder(Home(home), "aaaa").launch()
    for loss in (3.0, 1.0, 2.0):
        first.train(1).log({"val/loss": loss, "mine": loss})
    first.end()
    RunBuilder(Home(home), "bbbb").launch().train(1).log({"val/loss": 1.5}).end()
    rows = {each["name"]: each for each in compare(home, "aaaa", "bbbb")["metrics"]}
    a, b = rows["val/loss"]["runs"]
    assert (rows["val/loss"]["direction"], rows["val/loss"]["better"]) == ("down", 0)
    assert (a["last"], a["best"], a["best_step"], b["best"], b["best_step"]) == (2.0, 1.0, 2, 1.5, 1)
    assert rows["mine"]["runs"][1] is None
    assert (rows["mine"]["direction"], rows["mine"]["runs"][0]["best"]) == (None, None)


def test_accounts_and_rates_stand_side_by_side(home: Path) -> None:
    for run_id, compute_s in (("aaaa", 0.03), ("bbbb", 0.06)):
        run = RunBuilder(Home(home), run_id).launch()
        run.train(5, accounts=[{"compute": compute_s, "data_wait": 0.01}]).end()
    found = compare(home, "aaaa", "bbbb")
    accounts = {each["name"]: each for each in found["accounts"]}
    assert accounts["compute"]["seconds"] == pytest.approx([0.03, 0.06])
    assert accounts["compute"]["shares"] == pytest.approx([0.75, 6 / 7])
    assert accounts["compute"]["ratios"] == pytest.approx([1.0, 2.0])
    assert accounts["step"]["seconds"] == pytest.approx([0.04, 0.07])
    rates = {each["name"]: each["ratios"] for each in found["throughput"]}
    assert rates["steps_per_s"] == pytest.approx([1.0, 4 / 7])
    assert found["goodput"][0]["name"] == "ratio"


def test_runs_that_have_done_nothing_can_be_compared(home: Path) -> None:
    for run_id in ("aaaa", "bbbb"):
        RunBuilder(Home(home), run_id).launch().abandon()
    got = compare(home, "aaaa", "bbbb")
    assert (got["metrics"], got["accounts"], got["throughput"], got["goodput"]) == ([], [], [], [])
    assert got["divergence"][0]["reason"] == "metrics"


def test_the_keys_are_these(home: Path) -> None:
    for run_id in ("aaaa", "bbbb"):
        run = RunBuilder(Home(home), run_id).launch()
        run.tell(events.Note(1, "info", "c", "x")).train(1).end()
    got = compare(home, "aaaa", "bbbb")
    assert " ".join(got) == "runs digests divergence configuration metrics accounts throughput goodput"
    assert " ".join(got["runs"][0]) == "id name project status created steps world seed"
    assert " ".join(got["metrics"][0]) == "name direction better runs"
    assert " ".join(got["metrics"][0]["runs"][0]) == "rank count last last_step min max best best_step nan"
