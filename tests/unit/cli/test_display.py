"""What `gscalar run` shows on a terminal and elsewhere."""

from __future__ import annotations

import dataclasses
import io

import pytest

from gscalar.cli.display import LiveDisplay, PlainDisplay, describe, describe_shares, open_display
from gscalar.control.display import Display, Notice
from gscalar.control.progress import Progress, Shares


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def progress(step: int, **more: float) -> Progress:
    figures = {"steps_per_s": 7.812, "loss": 2.34567, "lr": 3e-3} | more
    return Progress(attempt=0, world=2, phase="training", step=step, **figures)  # type: ignore[arg-type]


LINES = {
    "before the first step: what it is at": (Progress(attempt=0, world=1, phase="compile"), "compile"),
    "a step": (progress(120), "step 120 · 7.81 steps/s · loss 2.3457 · lr 3.00e-03"),
    "the length of the training is known": (
        progress(120, total_steps=400, tokens_per_s=32100.0, samples_per_s=9.0, eta_s=35.8),
        "step 120/400 · 7.81 steps/s · 32.1 k tokens/s · loss 2.3457 · lr 3.00e-03 · 35.8 s to go",
    ),
    "without tokens: samples": (
        progress(1, samples_per_s=250.0),
        "step 1 · 7.81 steps/s · 250 samples/s · loss 2.3457 · lr 3.00e-03",
    ),
    "a loss that is not finite": (
        progress(1, loss=float("nan")),
        "step 1 · 7.81 steps/s · loss nan · lr 3.00e-03",
    ),
    "an evaluation between steps": (
        Progress(attempt=0, world=1, phase="evaluation", step=3),
        "step 3 · evaluation",
    ),
}


@pytest.mark.parametrize("sentence", LINES)
def test_the_line(sentence: str) -> None:
    given, want = LINES[sentence]
    assert describe(given) == want


SHARES = Shares(data=0.031, compute=0.705, exposed_communication=0.184)
LED = Shares(data=0.0, compute=0.5, exposed_communication=0.5, slowest_rank=12)
SHARE_LINES = {
    "where a step goes": (SHARES, "data 3 % · compute 70 % · exposed communication 18 %"),
    "and who is waited for": (LED, "data 0 % · compute 50 % · exposed communication 50 % · slowest: rank 12"),
}


@pytest.mark.parametrize("sentence", SHARE_LINES)
def test_the_line_of_shares_fits_a_narrow_terminal(sentence: str) -> None:
    given, want = SHARE_LINES[sentence]
    assert describe_shares(given) == want
    assert len(want) <= 80


def test_shares_are_on_the_same_line_elsewhere(clock: Clock) -> None:
    err = io.StringIO()
    display = PlainDisplay(io.StringIO(), err, clock)
    clock.now_s += 10
    display.progress(dataclasses.replace(progress(3), shares=SHARES))
    assert err.getvalue().endswith("lr 3.00e-03 · data 3 % · compute 70 % · exposed communication 18 %\n")


def test_shares_have_a_line_of_their_own_on_a_terminal(clock: Clock) -> None:
    err = Terminal()
    display = LiveDisplay(Terminal(), err, clock)
    display.progress(dataclasses.replace(progress(7, total_steps=9), shares=LED))
    display.close()
    lines = [line for line in err.getvalue().splitlines() if "slowest: rank 12" in line]
    assert lines
    assert "step 7/9" not in lines[0]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_elsewhere_figures_are_said_every_five_seconds_and_not_twice(clock: Clock) -> None:
    err = io.StringIO()
    display = PlainDisplay(io.StringIO(), err, clock)
    for now_s, step in ((101, 1), (104.9, 2), (105, 3), (109, 4), (110, 5), (115, 5)):
        clock.now_s = now_s
        display.progress(progress(step))
    assert [line.split(" · ")[0] for line in err.getvalue().splitlines()] == ["step 3", "step 5"]


def test_rank_0s_lines_go_to_stdout_and_all_else_to_stderr(clock: Clock) -> None:
    out, err = io.StringIO(), io.StringIO()
    display = PlainDisplay(out, err, clock)
    display.output(["a", "b"])
    display.notice(Notice(level="info", text="attempt 0"))
    display.notice(Notice(level="warning", text="old checkpoint"))
    display.notice(Notice(level="failure", text="rank 1 failed", detail="Traceback\nx\n"))
    assert out.getvalue() == "a\nb\n"
    assert err.getvalue() == (
        "gscalar: attempt 0\ngscalar: warning: old checkpoint\ngscalar: rank 1 failed\nTraceback\nx\n"
    )


def test_readers_that_have_gone_end_the_display_and_nothing_else(clock: Clock) -> None:
    display = PlainDisplay(Gone(), Gone(), clock)
    for _ in range(2):
        display.output(["a"])
        display.notice(Notice(level="info", text="x"))


def test_a_terminal_has_one_live_line_and_rank_0s_lines_above_it(clock: Clock) -> None:
    err = Terminal()
    display = LiveDisplay(Terminal(), err, clock)
    display.progress(progress(7, total_steps=9))
    display.output(["epoch 1", "[red]no markup"])
    display.notice(Notice(level="failure", text="rank 1 failed", detail="Traceback"))
    display.close()
    for wanted in ("step 7/9", "epoch 1", "[red]no markup", "rank 1 failed", "Traceback"):
        assert wanted in err.getvalue()


def test_on_a_terminal_the_line_is_drawn_a_few_times_a_second(clock: Clock) -> None:
    err = Terminal()
    display = LiveDisplay(Terminal(), err, clock)
    for step in range(1, 100):
        clock.now_s += 0.01
        display.progress(progress(step))
    display.close()
    assert 3 <= err.getvalue().count("steps/s") <= 6


def test_with_stdout_elsewhere_rank_0s_lines_go_there(clock: Clock) -> None:
    out, err = io.StringIO(), Terminal()
    display = LiveDisplay(out, err, clock)
    display.output(["epoch 1"])
    display.close()
    assert out.getvalue() == "epoch 1\n"
    assert "epoch 1" not in err.getvalue()


def test_the_streams_choose_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    plain: Display = open_display(io.StringIO(), io.StringIO())
    live: Display = open_display(io.StringIO(), Terminal())
    monkeypatch.setenv("TERM", "dumb")
    dumb: Display = open_display(io.StringIO(), Terminal())
    assert [type(each) for each in (plain, live, dumb)] == [PlainDisplay, LiveDisplay, PlainDisplay]
