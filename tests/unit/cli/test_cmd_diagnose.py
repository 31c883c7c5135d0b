"""`gscalar diagnose` and `gscalar whatif` from the words of the command line to what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest

from gscalar.cli.cmd_whatif import Bandwidth
from gscalar.cli.main import main
from gscalar.diagnosis.verdicts import FIX_NAMES, Cause
from gscalar.state.home import Home
from gscalar.testing.builders import FakeClock, RunBuilder
from gscalar.testing.kineto_traces import KinetoTrace
from gscalar.testing.pipelines import draw_pipeline, simulate_pipeline, write_operations

Run = Callable[..., tuple[int, str, str]]
KEYS = [
    "source", "name", "step_s", "steps", "ranks", "world", "slowdown", "measured_over_ideal", "replay_error",
    "principal", "findings", "fixes", "accounts", "exposed_s", "overlap_ratio", "devices", "not_supported", "unknown",
    "unmatched", "notes",
]  # fmt: skip


@pytest.fixture
def gscalar(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table of operations of a pipeline with one slow worker."""
    drawn = draw_pipeline(np.random.default_rng(0), dp=4, pp=2, micro=4, steps=12, slow={(1, 0): 1.6})
    write_operations(tmp_path / "pipeline.csv", simulate_pipeline(drawn))
    return str(tmp_path / "pipeline.csv")


def test_the_keys_are_stable(gscalar: Run, table: str) -> None:
    code, out, _ = gscalar("diagnose", table, "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found) == KEYS
    assert list(found["principal"]) == ["cause", "ranks", "stages", "cost_share", "confidence", "for", "against"]
    assert found["principal"]["cause"] in {cause.value for cause in Cause}
    assert {each["name"] for each in found["fixes"]} <= set(FIX_NAMES)
    assert {"overlap", "balance", "overlap+balance"} <= {each["name"] for each in found["fixes"]}
    assert {"predicted_step_s", "low_s", "high_s", "gain", "ceiling", "knob"} <= set(found["fixes"][0])


def test_people_read_the_cause_the_fixes_and_what_is_not_known(gscalar: Run, table: str) -> None:
    code, out, _ = gscalar("diagnose", table)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("pipeline.csv, 8 ranks, 12 steps of")
    assert any(line.startswith("Principal: a slow worker (rank 1)") for line in lines)
    assert any(line.startswith("FIX") for line in lines)
    gains = [line for line in lines if line.startswith(("replace the slow worker", "A overlap", "B balance"))]
    assert gains[0].startswith("replace the slow worker")  # the largest gain first
    assert any("memory bandwidth (no counters)" in line for line in lines)


def test_a_run_is_diagnosed_by_its_name(gscalar: Run, home: Path) -> None:
    run = RunBuilder(Home(home), "c0ffeec0ffee", spec={"name": "waits"}, clock=FakeClock()).launch()
    run.train(20, accounts=[{"compute": 0.03, "data_wait": 0.03}])
    run.end()
    code, out, _ = gscalar("diagnose", "waits", "--json", "--home", str(home))
    found = json.loads(out)
    assert code == 0
    assert (found["source"], found["name"]) == ("record", "waits")
    assert found["principal"]["cause"] == "input_bound"


def test_the_page_and_the_trace_are_written_beside_the_answer(gscalar: Run, table: str, tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    code, out, _ = gscalar("diagnose", table, "--json", "--html", str(page), "--trace", str(trace))
    assert code == 0
    assert json.loads(out)["ranks"] == 8
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_trace_is_not_written_over_and_two_files_are_not_one(gscalar: Run, table: str, tmp_path: Path) -> None:
    before = Path(table).read_bytes()
    (tmp_path / "link").symlink_to(table)
    for option in ("--html", "--trace"):
        for place in (table, str(tmp_path / "link")):
            code, _, said = gscalar("diagnose", table, option, place)
            assert (code, "would be overwritten" in said) == (2, True)
    code, _, said = gscalar("diagnose", table, "--html", str(tmp_path / "x"), "--trace", f"{tmp_path}/./x")
    assert (code, "name the same file" in said) == (2, True)
    assert Path(table).read_bytes() == before


def test_names_of_a_trace_are_few_and_do_nothing_to_a_terminal(gscalar: Run, tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 10_000)
    for at in range(100):
        trace.kernel(f"nccl_{at:03}_\x1b]0;title\x07\u202e", at * 100, 50)
    path = trace.write(tmp_path / "a\x1b[31m.json")
    code, out, _ = gscalar("diagnose", str(path))
    assert code == 0
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert "nccl_007" in out
    assert "nccl_008" not in out
    assert "and 92 more" in out


def test_a_question_is_answered_with_its_remarks(gscalar: Run, table: str) -> None:
    code, out, _ = gscalar("whatif", table, "--fix", "overlap", "--fix", "balance", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["name"] == "overlap+balance"
    assert found["low_s"] <= found["predicted_step_s"] <= found["high_s"]
    assert found["remarks"] == []


REFUSED = {
    "nothing is asked": ((), "Ask something"),
    "a fix that is none": (("--fix", "magic"), "fix-unknown"),
    "a bandwidth that is none": (("--link", "fast"), "no bandwidth"),
    "more workers of a pipeline": (("--workers", "16"), "nothing-to-replay"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_is_refused(gscalar: Run, table: str, case: str) -> None:
    words, reason = REFUSED[case]
    code, out, err = gscalar("whatif", table, *words)
    assert (code, out) == (2, "")
    assert reason in err


def test_a_target_that_is_not_there_is_named(gscalar: Run, home: Path) -> None:
    code, _, err = gscalar("diagnose", "runs/trace.json", "--home", str(home))
    assert code == 2
    assert "runs/trace.json" in err
    assert "trace-not-found" in err


@pytest.mark.parametrize(
    ("text", "want"),
    [("10Gbit", 1.25e9), ("1gbit/s", 1.25e8), ("1.2GB", 1.2e9), ("100Mbps", 1.25e7), ("5kB", 5000.0), ("1GBps", 1e9)],
)
def test_bandwidths_are_bits_or_bytes_a_second(text: str, want: float) -> None:
    assert Bandwidth().convert(text, None, None) == want


@pytest.mark.parametrize(
    "text", ["", "10", "Gbit", "-1Gbit", "0Gbit", "1.2.3GB", "10 parsecs", "0.01bit", "9" * 400 + "GB"]
)
def test_other_words_are_no_bandwidth(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Bandwidth().convert(text, None, None)
