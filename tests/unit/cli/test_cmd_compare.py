"""`gscalar compare` from the words of the command line to what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gscalar.cli.cmd_compare import cut, labels, value_text
from gscalar.cli.main import main
from gscalar.state.home import Home
from gscalar.testing.builders import FakeClock, RunBuilder

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gscalar(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["compare", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def write(
    home: Path, run_id: str, name: str, *, compute_s: float = 0.03, late_loss: float = 4.0, **spec: object
) -> None:
    run = RunBuilder(Home(home), run_id, spec={"name": name} | spec, clock=FakeClock()).launch()
    run.train(3, accounts=[{"compute": compute_s, "data_wait": 0.01}])
    run.train(3, first_loss=late_loss, accounts=[{"compute": compute_s, "data_wait": 0.01}])
    run.log({"val/loss": late_loss, "mine": 1.0})
    run.finish("ab" * 32 if late_loss == 4.0 else "ef" * 32).end()


@pytest.fixture
def place(home: Path) -> Path:
    write(home, "aaaa00000000", "base")
    write(home, "bbbb00000000", "large", compute_s=0.06, late_loss=8.0, config={"lr": 0.002, "layers": 2})
    write(home, "cccc00000000", "again")
    return home


def test_two_runs_side_by_side(gscalar: Run, place: Path) -> None:
    code, out, err = gscalar("base", "large")
    assert (code, err) == (0, "")
    for part in (
        "A  base   aaaa00000000  completed  6 steps",
        "B  large  bbbb00000000  completed  6 steps",
        "Both: same data in the same order",
        "B diverged from A at step 4 in train/loss:\n  train/loss 1.0 against 2.0",
    ):
        assert part in out
    lines = [line.split() for line in out.splitlines()]
    assert ["config.lr", "0.001", "0.002"] in lines
    assert "optimizer" in out  # a hyperparameter that only the first has
    assert ["val/loss", "A", "4", "6", "4", "4", "6", "better"] in lines
    assert ["B", "8", "6", "8", "8", "6"] in lines
    assert ["mine", "A", "1", "6", "1", "1", "unknown"] in lines
    assert ["compute", "30.0", "ms", "75.0", "%", "60.0", "ms", "85.7", "%", "2.00x"] in lines
    assert ["steps/s", "25", "14.3", "0.57x"] in lines or any(line[:1] == ["steps/s"] for line in lines)
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_equal_runs_are_said_to_be_equal(gscalar: Run, place: Path) -> None:
    _, out, _ = gscalar("base", "again")
    assert "Both: same final weights, same data in the same order, same spec" in out
    assert "A and B are equal in 4 metrics up to step 6 (all 14 points)." in out
    assert "Configuration  no difference" in out


def test_all_shows_what_is_equal_too(gscalar: Run, place: Path) -> None:
    _, out, _ = gscalar("base", "again", "--all")
    assert ["config.lr", "0.001", "0.001"] in [line.split() for line in out.splitlines()]


def test_runs_of_unlike_seeds_are_not_compared_step_by_step(gscalar: Run, place: Path) -> None:
    write(place, "dddd00000000", "other", seed=8)
    assert "A and B are not compared step by step: their seeds differ." in gscalar("base", "other")[1]


def test_three_runs(gscalar: Run, place: Path) -> None:
    _, out, _ = gscalar("base", "large", "again")
    assert "B diverged from A at step 4" in out
    assert "A and C are equal" in out
    assert "All: same data in the same order" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_the_same(gscalar: Run, place: Path) -> None:
    found = json.loads(gscalar("base", "large", "--json")[1], parse_constant=pytest.fail)
    assert [run["id"] for run in found["runs"]] == ["aaaa00000000", "bbbb00000000"]
    assert found["divergence"][0]["step"] == 4
    assert found["configuration"][0]["key"] == "config.lr"


def test_curves_of_all_runs_in_one_chart(gscalar: Run, place: Path) -> None:
    code, out, _ = gscalar("base", "large", "--plot", "train/loss")
    assert code == 0
    assert "A base: last 0.66667" in out
    assert "B large: last 1.3333" in out


WRONG: dict[str, tuple[list[str], str]] = {
    "one run": (["base"], "at least two runs"),
    "the same run twice": (["base", "aaaa00000000"], "at least two runs"),
    "an unknown run": (["base", "bose"], "[run-not-found]"),
    "an unknown name": (["base", "large", "--plot", "val/los"], "Did you mean val/loss"),
    "JSON and a chart": (["base", "large", "--json", "--plot", "val/loss"], "exclude each other"),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_usage_is_told(sentence: str, gscalar: Run, place: Path) -> None:
    words, want = WRONG[sentence]
    code, out, err = gscalar(*words)
    assert (code, out) == (2, "")
    assert want in err


def test_runs_of_one_name_are_told_apart_by_their_ids() -> None:
    runs = [{"name": "a", "id": "1"}, {"name": "a", "id": "2"}, {"name": "b", "id": "3"}]
    assert labels(runs) == ["a 1", "a 2", "b"]


def test_long_values_are_cut_and_stay_one_line() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abcde…"
    assert value_text("a\nb") == "a"
    assert (value_text(None), value_text(0.1), value_text([1, "x"]), value_text(True)) == (
        "-",
        "0.1",
        '[1, "x"]',
        "true",
    )
