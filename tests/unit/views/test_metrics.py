from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gscalar.base.errors import UserError
from gscalar.state.home import Home
from gscalar.state.series import SeriesInfo
from gscalar.testing.builders import RunBuilder
from gscalar.views import metrics
from gscalar.views.metrics import (
    Choice,
    check_choice,
    choose_series,
    describe_series,
    find_unit,
    fresh_series,
    group_columns,
    iter_points,
)

EXAMPLES = itertools.count()


def info(kind: str, name: str, rank: int = 0, **changes: Any) -> SeriesInfo:
    facts: dict[str, Any] = {
        "count": 1, "num_nan": 0, "num_posinf": 0, "num_neginf": 0, "first_step": 1, "last_step": 1,
        "first_time_ns": 0, "last_time_ns": 0, "last": 0.5, "least": 0.5, "greatest": 0.5,
        "least_step": 1, "greatest_step": 1,
    }  # fmt: skip
    return SeriesInfo(kind=kind, name=name, rank=rank, **(facts | changes))


ALL = [
    info("account", "compute"),
    info("account", "compute", 1),
    info("hardware", "host/cpu_cores", -1),
    info("hardware", "worker/cpu_cores", 1),
    info("metric", "a[0]"),
    info("metric", "train/loss", 1),
    info("metric", "train/loss", 2),
    info("metric", "val/loss", 0),
]

CHOSEN: dict[str, tuple[Choice, list[tuple[str, int]]]] = {
    "all metrics of the lowest rank that has them": (
        Choice(),
        [("a[0]", 0), ("train/loss", 1), ("val/loss", 0)],
    ),
    "everything, metrics first": (
        Choice(everything=True),
        [("a[0]", 0), ("train/loss", 1), ("val/loss", 0), ("compute", 0)]
        + [("host/cpu_cores", -1), ("worker/cpu_cores", 1)],
    ),
    "a whole name": (Choice(patterns=("train/loss",)), [("train/loss", 1)]),
    "a pattern": (Choice(patterns=("*/loss",)), [("train/loss", 1), ("val/loss", 0)]),
    "a name that is a pattern of another": (Choice(patterns=("a[0]",)), [("a[0]", 0)]),
    "two patterns that fit the same": (Choice(patterns=("train/*", "*/loss")), [("train/loss", 1), ("val/loss", 0)]),
    "a name of an account without further words": (Choice(patterns=("compute",)), [("compute", 0)]),
    "a pattern that fits metrics and more means metrics": (
        Choice(patterns=("*",)),
        [("a[0]", 0), ("train/loss", 1), ("val/loss", 0)],
    ),
    "all ranks": (Choice(patterns=("train/loss",), all_ranks=True), [("train/loss", 1), ("train/loss", 2)]),
    "one rank": (Choice(rank=2), [("train/loss", 2)]),
    "the host": (Choice(everything=True, rank=-1), [("host/cpu_cores", -1)]),
    "a name that is not there": (Choice(patterns=("nope",)), []),
}


@pytest.mark.parametrize("sentence", CHOSEN)
def test_chosen_are(sentence: str) -> None:
    choice, want = CHOSEN[sentence]
    assert [(each.name, each.rank) for each in choose_series(ALL, choice)] == want


REFUSED: dict[str, tuple[Choice, str]] = {
    "a slip": (Choice(patterns=("train/los",)), "train/loss"),
    "a part of a name": (Choice(patterns=("loss",)), "val/loss or train/loss"),
    "a rank that nobody had": (Choice(rank=9), "host, 0, 1, 2"),
    "a rank that did not record the name": (Choice(patterns=("train/loss",), rank=0), "1, 2"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_not_there_is_refused_with_what_is(sentence: str) -> None:
    choice, offered = REFUSED[sentence]
    with pytest.raises(UserError) as caught:
        check_choice({"aaaa": ALL}, choice)
    assert caught.value.code == "metric-not-found"
    assert offered in caught.value.next_step


def test_a_name_that_one_of_two_runs_has_is_enough() -> None:
    check_choice({"aaaa": ALL, "bbbb": []}, Choice(patterns=("val/loss",)))


def test_a_run_without_series_refuses_only_a_name() -> None:
    check_choice({"aaaa": []}, Choice())
    with pytest.raises(UserError, match="no series by now"):
        check_choice({"aaaa": []}, Choice(patterns=("val/loss",)))


def test_the_json_form_has_these_keys() -> None:
    got = describe_series("aaaa", info("metric", "train/loss", 3, num_nan=1, last=math.nan))
    assert " ".join(got) == (
        "run kind name rank unit count last min max first_step last_step first_time last_time nan posinf neginf"
    )
    assert (got["run"], got["rank"], got["nan"], got["first_time"]) == ("aaaa", 3, 1, "1970-01-01T00:00:00.000000Z")


def test_hardware_has_no_steps() -> None:
    got = describe_series("aaaa", info("hardware", "host/memory_bytes", -1, first_step=-1, last_step=-1))
    assert (got["first_step"], got["last_step"], got["unit"]) == (None, None, "byte")


def test_units_are_those_of_the_tables() -> None:
    units = [
        find_unit(*each)
        for each in (
            ("metric", "train/step_s"),
            ("metric", "mine"),
            ("account", "gc"),
            ("hardware", "gpu3/power_watts"),
        )
    ]
    assert units == ["s", None, "s", "W"]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(st.integers(-5, 40), min_size=1, max_size=120), axis=st.sampled_from(["step", "time"]))
def test_points_in_windows_are_all_points_once(steps: list[int], axis: str, fill_series: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "WINDOW_POINTS", 7)
        run_id = f"r{next(EXAMPLES)}"
        reader = fill_series(np.arange(len(steps)), steps=steps, run_id=run_id)
        (one,) = reader.list()
        for begin, end in ((None, None), (3, None), (None, 20), (3, 20)):
            batches = list(iter_points(reader, one, axis=axis, begin=begin, end=end))
            want = reader.points(one.kind, one.name, one.rank, axis=axis, begin=begin, end=end)
            got = np.concatenate([each.values for each in batches]).tolist() if batches else []
            assert got == want.values.tolist()


def test_points_at_one_step_are_in_one_window(fill_series: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "WINDOW_POINTS", 1)
    chart = fill_series(np.arange(6), steps=[1, 1, 2, 2, 3, 3]).chart("metric", "train/loss", 0)
    assert chart.exact
    assert list(group_columns(chart, None, 9)) == [(None, 1), (2, 2), (3, 9)]


def test_many_points_come_in_several_batches(fill_series: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "WINDOW_POINTS", 100)
    reader = fill_series(np.arange(1000))
    (one,) = reader.list()
    sizes = [len(each.steps) for each in iter_points(reader, one, axis="step")]
    assert sum(sizes) == 1000
    assert max(sizes) <= 100


def test_series_are_read_up_to_what_the_run_has_written(home: Any) -> None:
    run = RunBuilder(Home(home)).launch().train(2)
    with fresh_series(Home(home), run.run_id, "tiny") as found:
        assert {each.name: each.count for each in found.infos}["train/loss"] == 2
    run.train(1)
    with fresh_series(Home(home), run.run_id, "tiny") as found:
        assert {each.name: each.count for each in found.infos}["train/loss"] == 3
    run.abandon()
