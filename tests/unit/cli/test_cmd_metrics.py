"""`gscalar metrics` from the words of the command line to what is printed."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from gscalar.cli import cmd_metrics, points
from gscalar.cli.main import main
from gscalar.state.home import Home
from gscalar.testing.builders import FakeClock, RunBuilder, write_run
from gscalar.views import metrics

Run = Callable[..., tuple[int, str, str]]
ACCOUNTS = {"compute": 0.04, "data_wait": 0.01}


@pytest.fixture
def gscalar(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["metrics", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def place(home: Path) -> Home:
    """Two runs: one with a failure, NaN, accounts and hardware, and one plain."""
    found, clock = Home(home), FakeClock()
    run = RunBuilder(found, "aaaa00000000", spec={"name": "base"}, clock=clock)
    run.launch(2).train(4, accounts=[ACCOUNTS]).log({"val/loss": math.nan, "val/accuracy": -0.0})
    run.checkpoint().train(2, accounts=[ACCOUNTS], first_loss=1000.0).log({"val/loss": 9.0})
    run.sample({"host/memory_bytes": 2.0**31}).sample({"worker/cpu_cores": 1.5}, of=1)
    run.fail().end_attempt("failed", {"rank": 0, "kind": "ValueError"})
    run.launch(2, from_step=4).train(4, accounts=[ACCOUNTS]).log({"val/loss": math.inf, "val/accuracy": 0.1})
    run.finish().end()
    write_run(found, "bbbb00000000", spec={"name": "plain"}, steps=3, clock=clock)
    return found


def rows(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


# ---- the table


def test_a_run_without_further_words_is_a_table_of_its_metrics(gscalar: Run, place: Home) -> None:
    code, out, err = gscalar("base")
    assert (code, err) == (0, "")
    found = rows(out)
    assert found["NAME"] == ["LAST", "MIN", "MAX", "COUNT", "STEP", "NaN", "INF", "CURVE"]
    # The loss of step n is 4 / n; the steps 5 and 6 that were lost, and were near 1000, count nowhere.
    assert found["train/loss"][:5] == ["0.5", "0.5", "4", "8", "8"]
    assert found["val/loss"][:7] == ["inf", "inf", "inf", "2", "8", "1", "1"]
    assert "compute" not in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_all_kinds_have_tables_of_their_own(gscalar: Run, place: Home) -> None:
    _, out, _ = gscalar("base", "--all")
    assert out.index("train/loss") < out.index("Accounts of a step") < out.index("compute") < out.index("Hardware")
    assert rows(out)["compute"][:3] == ["0.04", "0.04", "0.04"]
    assert "2.00 GiB" in out


def test_all_ranks_are_a_row_each(gscalar: Run, place: Home) -> None:
    _, out, _ = gscalar("base", "-n", "train/loss", "--rank", "all")
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["train/loss", "0", "0.5"],
        ["train/loss", "1", "1.5"],
    ]


@pytest.mark.parametrize(("rank", "want"), [("1", "worker/cpu_cores"), ("host", "host/memory_bytes")])
def test_one_rank_or_the_host(rank: str, want: str, gscalar: Run, place: Home) -> None:
    _, out, _ = gscalar("base", "--all", "--rank", rank)
    hardware = {name for name in rows(out) if name.startswith(("host/", "worker/"))}
    assert hardware == {want}


def test_several_runs_are_a_table_each(gscalar: Run, place: Home) -> None:
    _, out, _ = gscalar("base", "plain")
    assert [line for line in out.splitlines() if line.endswith("00000000")] == [
        "base  aaaa00000000",
        "plain  bbbb00000000",
    ]


def test_a_run_without_metrics_says_so(gscalar: Run, home: Path) -> None:
    run = RunBuilder(Home(home), spec={"name": "bare"}).launch()
    run.abandon()
    code, out, err = gscalar("bare")
    assert (code, out, err) == (0, "", "The run bare has no metrics by now.\n")
    assert gscalar("bare", "--json")[:2] == (0, "[]\n")
    assert gscalar("bare", "--format", "json")[:2] == (0, "[]\n")
    assert gscalar("bare", "--plot")[0] == 0


def test_a_run_that_goes_on_has_what_it_has_written(gscalar: Run, home: Path) -> None:
    run = RunBuilder(Home(home), spec={"name": "going"}).launch().train(3)
    assert rows(gscalar("going")[1])["train/loss"][3] == "3"
    run.train(2)
    assert rows(gscalar("going")[1])["train/loss"][3] == "5"
    run.abandon()


def test_json_has_an_object_a_series(gscalar: Run, place: Home) -> None:
    found = {
        each["name"]: each for each in json.loads(gscalar("base", "--json", "--all")[1], parse_constant=pytest.fail)
    }
    assert found["val/loss"] == {
        "run": "aaaa00000000", "kind": "metric", "name": "val/loss", "rank": 0, "unit": None, "count": 2,
        "last": "Infinity", "min": "Infinity", "max": "Infinity", "first_step": 4, "last_step": 8,
        "first_time": found["val/loss"]["first_time"], "last_time": found["val/loss"]["last_time"],
        "nan": 1, "posinf": 1, "neginf": 0,
    }  # fmt: skip
    assert (found["compute"]["kind"], found["worker/cpu_cores"]["kind"]) == ("account", "hardware")


# ---- all points


def test_csv_has_all_points_exactly(gscalar: Run, place: Home) -> None:
    _, out, _ = gscalar("base", "-n", "val/*", "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert list(lines[0]) == ["run", "kind", "name", "rank", "attempt", "step", "time", "value"]
    assert [(each["name"], each["attempt"], each["step"], each["value"]) for each in lines] == [
        ("val/accuracy", "0", "4", "-0.0"),
        ("val/accuracy", "1", "8", "0.1"),
        ("val/loss", "0", "4", "NaN"),
        ("val/loss", "1", "8", "Infinity"),
    ]
    assert {(each["run"], each["kind"], each["rank"]) for each in lines} == {("aaaa00000000", "metric", "0")}


def test_times_are_exact_to_the_nanosecond(gscalar: Run, home: Path) -> None:
    clock = FakeClock(1_767_323_045_000_000_123)
    run = RunBuilder(Home(home), clock=clock).launch()
    clock.now_ns = 1_767_323_045_123_456_789  # 2026-01-02 03:04:05 UTC
    run.log({"x": 1.0}).end()
    _, out, _ = gscalar(run.run_id, "-n", "x", "--format", "csv")
    assert out.splitlines()[1].endswith(",x,0,0,0,2026-01-02T03:04:05.123456789Z,1.0")


def test_json_points_are_strict_and_the_same_as_the_csv(gscalar: Run, place: Home) -> None:
    found = json.loads(
        gscalar("base", "plain", "--all", "--rank", "all", "--format", "json")[1], parse_constant=pytest.fail
    )
    lines = list(csv.DictReader(io.StringIO(gscalar("base", "plain", "--all", "--rank", "all", "--format", "csv")[1])))
    assert [{key: "" if value is None else str(value) for key, value in each.items()} for each in found] == lines
    assert {each["step"] for each in found if each["kind"] == "hardware"} == {None}
    assert {each["rank"] for each in found if each["name"] == "train/loss"} == {0, 1}


def test_names_are_quoted_where_they_have_to_be(gscalar: Run, home: Path) -> None:
    run = RunBuilder(Home(home)).launch().log({'a,"b"': 1.0})
    run.end()
    assert next(csv.DictReader(io.StringIO(gscalar(run.run_id, "--format", "csv")[1])))["name"] == 'a,"b"'
    assert json.loads(gscalar(run.run_id, "--format", "json")[1])[0]["name"] == 'a,"b"'


def test_a_part_of_the_axis(gscalar: Run, place: Home) -> None:
    _, out, _ = gscalar("base", "-n", "train/loss", "--format", "csv", "--from", "3", "--to", "5")
    assert [each["step"] for each in csv.DictReader(io.StringIO(out))] == ["3", "4", "5"]


def test_points_come_in_pieces(gscalar: Run, place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gscalar("base", "--format", "csv")[1], gscalar("base", "--format", "json")[1]
    monkeypatch.setattr(metrics, "WINDOW_POINTS", 2)
    pieces: list[str] = []
    monkeypatch.setattr(points.click, "echo", lambda text, **_: pieces.append(text))
    main(["metrics", "base", "--format", "csv"])
    assert "".join(pieces) == whole[0]
    assert max(piece.count("\n") for piece in pieces) <= 2
    pieces.clear()
    main(["metrics", "base", "--format", "json"])
    assert json.loads("".join(pieces)) == json.loads(whole[1])


def test_a_reader_that_has_seen_enough_is_no_error(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(points.click, "echo", refuse)
    dropped: list[bool] = []
    monkeypatch.setattr(points, "drop_output", lambda: dropped.append(True))
    assert main(["metrics", "base", "--format", "csv"]) == 0
    assert dropped == [True]


# ---- charts


def test_each_name_is_a_chart_with_all_runs(gscalar: Run, place: Home) -> None:
    code, out, _ = gscalar("base", "plain", "-n", "train/loss", "-n", "train/lr", "--plot")
    assert code == 0
    titles = [line for line in out.splitlines() if line.startswith("train/")]
    assert titles == ["train/loss", "train/lr"]
    assert "A base: last 0.5, min 0.5, max 4" in out
    assert "B plain: last 1.3333, min 1.3333, max 4" in out
    assert max(map(len, out.splitlines())) <= 80


def test_what_is_not_finite_is_counted_in_the_legend(gscalar: Run, place: Home) -> None:
    _, out, _ = gscalar("base", "-n", "val/loss", "--plot")
    assert "base: 1 NaN x, 1 infinite ▲" in out


def test_hardware_is_drawn_over_time(gscalar: Run, place: Home) -> None:
    _, out, _ = gscalar("base", "-n", "host/memory_bytes", "--plot")
    assert "relative, s" in out


def test_a_chart_is_as_large_as_asked(gscalar: Run, place: Home) -> None:
    _, out, _ = gscalar(
        "base", "-n", "train/loss", "--plot", "--width", "40", "--height", "5", "--log", "--smooth", "0.5"
    )
    assert max(map(len, out.splitlines())) == 40
    assert sum(any(mark in line for mark in "┤│") for line in out.splitlines()) == 5
    assert "smoothed 0.5" in out


def test_names_are_a_chart_on_a_terminal_and_a_table_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "form": None, "plot": None, "as_json": False, "names": ("a",), "smooth": 0.0, "log": False, "width": None,
        "begin": None, "end": None, "axis": None,
    }  # fmt: skip
    for terminal, names, want in ((True, ("a",), "plot"), (True, (), "table"), (False, ("a",), "table")):
        monkeypatch.setattr(cmd_metrics.sys.stdout, "isatty", lambda terminal=terminal: terminal, raising=False)
        assert cmd_metrics.choose_form(options | {"names": names}) == want
    with pytest.raises(click.UsageError, match="--from needs"):
        cmd_metrics.choose_form(options | {"begin": "3"})


# ---- wrong usage

WRONG: dict[str, tuple[list[str], str]] = {
    "an unknown name": (["base", "-n", "val/los"], "Did you mean val/loss"),
    "a rank that was not there": (["base", "--rank", "7"], "These have: host, 0, 1"),
    "an unknown run": (["bose"], "[run-not-found]"),
    "a name among the runs": (["base", "train/loss"], "A metric's name goes after --name."),
    "JSON and a chart": (["base", "--json", "--plot"], "--json is the table"),
    "JSON and points": (["base", "--json", "--format", "csv"], "--json is the table"),
    "a chart and points": (["base", "--plot", "--format", "csv"], "exclude each other"),
    "smoothing a table": (["base", "--smooth", "0.9"], "--smooth needs --plot"),
    "a part of a table": (["base", "--to", "9"], "--to needs --plot or --format"),
    "a step that is none": (["base", "-n", "*", "--format", "csv", "--from", "x"], "'x' is no step"),
    "a time that is none": (["base", "--format", "csv", "--axis", "time", "--from", "x"], "'x' is no time"),
    "a duration that is none": (["base", "--plot", "--axis", "relative", "--to", "x"], "'x' is no time since"),
    "a weight of one": (["base", "--plot", "--smooth", "1"], "--smooth"),
    "no rank": (["base", "--rank", "x"], "'x' is no rank"),
    "no run": ([], "RUN"),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_usage_is_told(sentence: str, gscalar: Run, place: Home) -> None:
    words, want = WRONG[sentence]
    code, out, err = gscalar(*words)
    assert (code, out) == (2, "")
    assert want in err


POSITIONS: dict[str, tuple[str, str, int]] = {
    "a step": ("step", "12", 12),
    "seconds": ("relative", "1.5", 1_500_000_100),
    "minutes": ("relative", "2min", 120_000_000_100),
    "a date": ("time", "2026-01-02T03:04:05+00:00", 1_767_323_045_000_000_000),
}


@pytest.mark.parametrize("sentence", POSITIONS)
def test_a_position_on_the_axis(sentence: str) -> None:
    from gscalar.cli.charts import parse_position

    axis, text, want = POSITIONS[sentence]
    assert parse_position(axis, text, 100) == want
