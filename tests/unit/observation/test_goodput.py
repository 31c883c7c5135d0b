"""Where the time of a run went: a table of what can happen to it. Times are seconds of the wall clock."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.observation.goodput import AttemptTimes, Goodput, Jump, measure_goodput

HOUR_S = 3600.0


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


def attempt(
    start: float,
    end: float,
    *,
    steps: float = 0.0,
    superseded: float = 0.0,
    waits: tuple[float, float] | None = (0.0, 0.0),
    after: float = 0.0,
    jumps: tuple[tuple[float, float], ...] = (),
    **moments: float | None,
) -> AttemptTimes:
    """One attempt; `steps` count, and `waits` of them are for data and for checkpoints.

    `first` is when its first step begins, `failed` when it fails, `silent` since when the hung rank gave no sign.
    """
    times = {name: None if moment is None else ns(moment) for name, moment in moments.items()}
    return AttemptTimes(
        started_ns=ns(start),
        ended_ns=ns(end),
        jumps=tuple(Jump(time_ns=ns(at), by_s=by_s) for at, by_s in jumps),
        first_step_ns=times.pop("first", None),
        counted_s=steps,
        superseded_s=superseded,
        data_wait_s=waits[0] if waits else None,
        checkpoint_s=waits[1] if waits else None,
        failed_ns=times.pop("failed", None),
        silent_since_ns=times.pop("silent", None),
        after_s=after,
    )


# sentence: (attempts, the parts that are not 0)
CASES: dict[str, tuple[list[AttemptTimes], dict[str, float | None]]] = {
    # 10 s to the first step, 80 s of steps of which 5 wait for data and 3 for checkpoints, 10 s else.
    "one attempt": (
        [attempt(0, 100, first=10, steps=80, waits=(5, 3))],
        {"productive": 72, "data": 5, "checkpoint": 3, "start": 10, "other": 10},
    ),
    # Steps to 60, of which those after 50 are done again. It fails at 63, ends at 64, the next begins at 65 and
    # steps from 70 on.
    "a kill after a checkpoint and the next attempt": (
        [
            attempt(0, 64, first=10, steps=40, superseded=10, failed=63, after=1),
            attempt(65, 100, first=70, steps=30),
        ],
        {"productive": 70, "lost_progress": 10, "start": 10, "recovery": 7, "other": 3},
    ),
    # Silent from 40 on, called hung at 70, ended at 71.
    "a hang": (
        [
            attempt(0, 71, first=10, steps=28, failed=70, silent=40, after=0.5),
            attempt(71.5, 100, first=80, steps=20),
        ],
        {"productive": 48, "start": 10, "hang": 30, "recovery": 1 + 0.5 + 8.5, "other": 2},
    ),
    # The second attempt fails before its first step: all of it is the way back.
    "two failures in a row before the next first step": (
        [
            attempt(0, 50, first=10, steps=40, failed=50, after=1),
            attempt(51, 60, failed=60, after=2),
            attempt(62, 100, first=70, steps=30),
        ],
        {"productive": 70, "start": 10, "recovery": 1 + 9 + 2 + 8},
    ),
    "failures before the first step of all": (
        [attempt(0, 20, failed=18, after=1), attempt(21, 100, first=31, steps=69)],
        {"productive": 69, "start": 18, "recovery": 2 + 1 + 10},
    ),
    "a hang before the first step of all": (
        [attempt(0, 60, failed=60, silent=20, after=1), attempt(61, 100, first=71, steps=29)],
        {"productive": 29, "start": 20, "hang": 40, "recovery": 1 + 10},
    ),
    # Nobody told of its end but the script itself: there is nothing after it.
    "a run alone without a supervisor": (
        [attempt(0, 30, first=1, steps=29)],
        {"productive": 29, "start": 1},
    ),
    "a run that still goes on ends with its newest event": (
        [attempt(0, 40, first=10, steps=29)],
        {"productive": 29, "start": 10, "other": 1},
    ),
    "a run that has failed for good: nothing was recovered": (
        [attempt(0, 50, first=10, steps=30, failed=45, after=2)],
        {"productive": 30, "start": 10, "other": 12},
    ),
    # From 50 the wall clock says 3650.
    "the clock is set an hour ahead": (
        [attempt(0, HOUR_S + 100, first=10, steps=80, jumps=((HOUR_S + 50, HOUR_S),))],
        {"productive": 80, "start": 10, "other": 10},
    ),
    "the clock is set an hour ahead before the first step": (
        [attempt(0, HOUR_S + 100, first=HOUR_S + 10, steps=80, jumps=((HOUR_S + 5.5, HOUR_S),))],
        {"productive": 80, "start": 10, "other": 10},
    ),
    "the clock is set an hour back": (
        [attempt(HOUR_S, 100, first=HOUR_S + 10, steps=80, jumps=((50, -HOUR_S),))],
        # The time of the first step comes twice; the error is bounded by what steps leave.
        {"productive": 80, "start": 20},
    ),
    # The day between Ctrl-C and `--resume` is in no attempt, and what comes before the next step is a start.
    "interrupted on purpose and resumed a day later": (
        [attempt(0, 50, first=10, steps=40), attempt(86_400, 86_450, first=86_405, steps=45)],
        {"productive": 85, "start": 15},
    ),
    "stopped on purpose while it came back from a failure": (
        [
            attempt(0, 50, first=10, steps=40, failed=50, after=1),
            attempt(51, 55),
            attempt(1000, 1050, first=1010, steps=40),
        ],
        {"productive": 80, "start": 10, "recovery": 1 + 4 + 10},
    ),
    "steps without accounts: their waits are not known": (
        [attempt(0, 100, first=10, steps=90, waits=None)],
        {"productive": 90, "start": 10, "data": None, "checkpoint": None},
    ),
    "an attempt without accounts before one that has them": (
        [
            attempt(0, 50, first=0, steps=50, waits=None),
            attempt(50, 100, first=50, steps=50, waits=(4, 1)),
        ],
        {"productive": 95, "data": 4, "checkpoint": 1},
    ),
    "the clock ran slow: steps take longer than it says": (
        [attempt(0, 50, first=10, steps=80, failed=50)],
        {"productive": 80},
    ),
}


def parts(found: Goodput) -> dict[str, float | None]:
    values = {each.name.removesuffix("_s"): getattr(found, each.name) for each in fields(found)}
    return {name: value for name, value in values.items() if value != 0}


@pytest.mark.parametrize("sentence", CASES)
def test_every_second_is_in_one_part(sentence: str) -> None:
    attempts, want = CASES[sentence]
    found = measure_goodput(attempts)
    assert found is not None
    assert parts(found) == pytest.approx(want)
    assert found.total_s == pytest.approx(sum(value or 0 for value in want.values()))


@pytest.mark.parametrize("attempts", [[], [attempt(0, 10)], [attempt(0, 10, failed=9), attempt(11, 20)]])
def test_before_the_first_step_there_is_no_goodput(attempts: list[AttemptTimes]) -> None:
    assert measure_goodput(attempts) is None


def test_the_ratio_is_of_the_total() -> None:
    found = measure_goodput([attempt(0, 100, first=10, steps=80, waits=(5, 3))])
    assert found is not None
    assert found.ratio == pytest.approx(0.72)


TIMES = st.floats(-1e6, 1e6)
SPANS = st.floats(0, 1e5)
ANY_ATTEMPT = st.builds(
    attempt,
    TIMES,
    TIMES,
    first=st.none() | TIMES,
    steps=SPANS,
    superseded=SPANS,
    waits=st.none() | st.tuples(SPANS, SPANS),
    failed=st.none() | TIMES,
    silent=st.none() | TIMES,
    after=st.floats(-1e3, 1e5),
    jumps=st.lists(st.tuples(TIMES, TIMES), max_size=2).map(tuple),
)


@given(st.lists(ANY_ATTEMPT, max_size=4))
def test_whatever_the_clocks_say_no_part_is_negative_and_nothing_is_counted_twice(attempts: list[AttemptTimes]) -> None:
    found = measure_goodput(attempts)
    if found is None:
        return
    assert all(value is None or value >= 0 for value in parts(found).values())
    wall_s = sum(
        max(
            0.0,
            (each.ended_ns - each.started_ns) / 1e9 - sum(jump.by_s for jump in each.jumps),
            each.counted_s + each.superseded_s,
            (each.data_wait_s or 0.0) + (each.checkpoint_s or 0.0) + each.superseded_s,
        )
        + max(0.0, each.after_s)
        for each in attempts
    )
    assert found.total_s <= wall_s * (1 + 1e-9) + 1e-6
