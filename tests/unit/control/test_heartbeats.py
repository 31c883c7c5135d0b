"""Which rank is hung, and which only waits."""

from __future__ import annotations

import pytest

from gscalar.control.heartbeats import Hang, RankBeat, find_hang, overdue

NOW, LIMIT = 1000.0, 30.0


def beat(rank: int, silent_s: float, *, step: int = 5, armed: bool = True, **more: bool) -> RankBeat:
    arrived_s = NOW - silent_s
    return RankBeat(rank=rank, arrived_s=arrived_s, time_ns=int(arrived_s * 1e9), step=step, armed=armed, **more)


# sentence: (beats, states, (culprit, victims) or None)
CASES: dict[str, tuple[list[RankBeat], dict[int, str], tuple[int, tuple[int, ...]] | None]] = {
    "nobody is silent for long": ([beat(0, 29), beat(1, 1)], {}, None),
    "one worker alone": ([beat(0, 30)], {}, (0, ())),
    "before the first beat there is no clock": ([beat(0, 900, armed=False)], {}, None),
    "a script that never called init has no clock": ([beat(0, 900, armed=False, started=False)], {}, None),
    "after the session there is no clock": ([beat(0, 900, finished=True)], {}, None),
    "a stopped process is the culprit, though it was heard last": (
        [beat(0, 31), beat(1, 30)],
        {0: "running", 1: "stopped"},
        (1, (0,)),
    ),
    "a stopped process is the culprit as soon as anybody is late": (
        [beat(0, 31), beat(1, 5)],
        {0: "running", 1: "stopped"},
        (1, (0,)),
    ),
    "all are silent: the one that is a step behind": (
        [beat(0, 40, step=6), beat(1, 35, step=5), beat(2, 41, step=6)],
        {},
        (1, (0, 2)),
    ),
    "all are silent at one step: the one that was silent first": (
        [beat(0, 35), beat(1, 36), beat(2, 34)],
        {},
        (1, (0, 2)),
    ),
    "the others go on without it": ([beat(0, 1, step=90), beat(1, 31, step=5)], {}, (1, ())),
    "one that is nearly late waits already": ([beat(0, 20, step=6), beat(1, 31, step=5)], {}, (1, (0,))),
    "it waits for one that still beats at the same step": ([beat(0, 1), beat(1, 31)], {}, None),
    "one that never came to its first beat holds the others up": (
        [beat(0, 31, step=0), beat(1, 50, step=0, armed=False)],
        {},
        (1, (0,)),
    ),
    "a rank whose session is over is not looked at": ([beat(0, 31), beat(1, 900, finished=True)], {}, (0, ())),
}


@pytest.mark.parametrize("sentence", CASES)
def test_the_culprit(sentence: str) -> None:
    beats, states, want = CASES[sentence]
    got = find_hang(beats, states, NOW, LIMIT)
    assert (None if got is None else (got.rank, got.victims)) == want


def test_ranks_are_overdue_at_the_limit_and_not_before() -> None:
    beats = [beat(0, 30), beat(1, 29.9), beat(2, 99, armed=False), beat(3, 99, finished=True)]
    assert [late.rank for late in overdue(beats, NOW, LIMIT)] == [0]


def test_the_sentence_names_culprit_and_victims() -> None:
    hang = Hang(rank=3, step=12, silent_s=300.2, victims=(1,))
    assert Hang(rank=3, step=0, silent_s=9).describe() == "rank 3 gave no heartbeat for 9 s"
    assert hang.describe() == "rank 3 gave no heartbeat for 300 s after step 12; rank 1 was waiting for it"
