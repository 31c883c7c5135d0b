"""Estimates of one clock against another, with clocks and delays that the test makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gscalar.model.events import Clock
from gscalar.observation.clocks import ClockEstimator, JumpWatch, Ping, is_news, read_both_clocks, to_rank0_time

START_NS = 1_767_323_045_000_000_000
S = 10**9
ROUNDING_S = 5e-9


@dataclass(frozen=True)
class Rank0:
    """Rank 0's clock as a function of the own one: ahead by `offset_s` at the start, faster by `drift`."""

    offset_s: float = 0.0
    drift: float = 0.0

    def ahead_s(self, own_ns: int) -> float:
        return self.offset_s + self.drift * (own_ns - START_NS) / 1e9

    def at(self, own_ns: int) -> int:
        return own_ns + round(self.ahead_s(own_ns) * 1e9)

    def ping(self, at_s: float, there_s: float, back_s: float, busy_s: float = 0.0) -> Ping:
        """Ask at a time of the own clock; the message and the answer take so long, and rank 0 is busy between."""
        asked = START_NS + round(at_s * 1e9)
        arrived = asked + round(there_s * 1e9)
        answered = arrived + round(busy_s * 1e9)
        return Ping(asked, self.at(arrived), self.at(answered), answered + round(back_s * 1e9))


def estimate(estimator: ClockEstimator, at_s: float) -> Clock:
    got = estimator.estimate(START_NS + round(at_s * 1e9))
    assert got is not None
    return got


def test_without_an_answer_there_is_no_estimate() -> None:
    assert ClockEstimator().estimate(START_NS) is None


def test_equal_ways_give_the_offset_itself_whatever_rank_0_does_between() -> None:
    estimator = ClockEstimator()
    estimator.add([Rank0(12.5).ping(0.0, 0.001, 0.001, busy_s=0.7)])
    got = estimate(estimator, 0.7)
    assert got.offset_s == pytest.approx(12.5, abs=ROUNDING_S)
    assert (got.num_pings, got.drift) == (1, 0.0)
    assert got.bound_s < 0.01  # its 0.7 s are not on the way


def test_the_bound_is_half_the_shortest_round_trip_of_a_burst() -> None:
    rank0 = Rank0(-3.0)
    estimator = ClockEstimator()
    estimator.add([rank0.ping(0.0, 0.009, 0.001), rank0.ping(0.1, 0.0005, 0.0015), rank0.ping(0.2, 0.03, 0.03)])
    got = estimate(estimator, 0.101)
    assert got.bound_s == pytest.approx(0.001, rel=0.01)
    assert got.offset_s == pytest.approx(-3.0 - 0.0005, abs=1e-6)


def test_an_old_answer_bounds_less() -> None:
    estimator = ClockEstimator()
    estimator.add([Rank0().ping(0.0, 0.001, 0.001)])
    assert estimate(estimator, 30.0).bound_s == pytest.approx(0.031, rel=0.01)


def test_a_drift_is_told_once_it_is_known_well_and_not_before() -> None:
    rank0, estimator = Rank0(1.0, drift=40e-6), ClockEstimator()
    drifts = []
    for burst in range(40):
        estimator.add([rank0.ping(10.0 * burst, 0.0005, 0.0005)])
        drifts.append(estimate(estimator, 10.0 * burst).drift)
    assert drifts[:3] == [0.0] * 3
    assert drifts[-1] == pytest.approx(40e-6, rel=1e-3)


def test_a_line_bounds_tighter_than_one_ping_where_few_were_quick() -> None:
    rank0, estimator = Rank0(), ClockEstimator()
    for burst in range(30):
        delay_s = 0.0001 if burst in (0, 15, 28) else 0.01
        estimator.add([rank0.ping(10.0 * burst, delay_s, delay_s)])
    # One ping alone: the quick one of 10 s ago and 10 ms for its age, or the last one's own 10 ms.
    assert estimate(estimator, 290.0).bound_s < 0.0005


DELAYS = st.floats(1e-6, 0.2)
BURSTS = st.lists(
    st.tuples(st.floats(0.5, 40.0), st.lists(st.tuples(DELAYS, DELAYS, st.floats(0.0, 0.1)), min_size=1, max_size=4)),
    min_size=1,
    max_size=25,
)


@given(
    offset_s=st.floats(-1e5, 1e5),
    drift=st.floats(-5e-4, 5e-4),
    bursts=BURSTS,
    later_s=st.floats(0.0, 60.0),
)
# Rank 0 held the first answer for long, and its clock ran on at its own pace meanwhile.
@example(
    offset_s=0.0,
    drift=0.0003414906789737899,
    bursts=[(1.0, [(0.001953125, 1e-06, 0.0625)]), (1.0, [(1e-06, 1e-06, 0.0)])],
    later_s=0.0,
)
def test_the_true_offset_is_within_the_bound_whatever_the_delays(
    offset_s: float, drift: float, bursts: list[tuple[float, list[tuple[float, float, float]]]], later_s: float
) -> None:
    rank0, estimator, at_s = Rank0(offset_s, drift), ClockEstimator(), 0.0
    for pause_s, delays in bursts:
        at_s += pause_s
        pings = [rank0.ping(at_s + 0.5 * place, *each) for place, each in enumerate(delays)]
        at_s += 0.5 * len(delays)
        assert not estimator.add(pings), "clocks that drift as the model says were never set"
        for when_s in (at_s, at_s + later_s):
            now_ns = START_NS + round(when_s * 1e9)
            got = estimate(estimator, when_s)
            assert abs(got.offset_s - rank0.ahead_s(now_ns)) <= got.bound_s + ROUNDING_S


@given(by_s=st.floats(0.2, 7200.0), sign=st.sampled_from([-1, 1]), num_before=st.integers(1, 12))
def test_a_clock_that_was_set_starts_the_estimate_anew(by_s: float, sign: int, num_before: int) -> None:
    estimator = ClockEstimator()
    for burst in range(num_before):
        assert not estimator.add([Rank0(5.0).ping(10.0 * burst, 0.001, 0.002)])
    jumped = Rank0(5.0 + sign * by_s)
    at_s = 10.0 * num_before
    assert estimator.add([jumped.ping(at_s, 0.002, 0.001)])
    got = estimate(estimator, at_s + 0.003)
    assert got.num_pings == 1
    assert abs(got.offset_s - jumped.offset_s) <= got.bound_s + ROUNDING_S


def test_both_clocks_of_one_host_set_back_at_once_start_anew_too() -> None:
    estimator = ClockEstimator()
    for at_s in (0.0, 10.0, 20.0):
        estimator.add([Rank0().ping(at_s, 0.001, 0.001)])
    estimator.add([Rank0().ping(-3580.0, 0.001, 0.001)])
    got = estimate(estimator, -3580.0)
    assert (got.num_pings, got.drift) == (1, 0.0)
    assert got.bound_s == pytest.approx(0.001, rel=0.01)


def test_what_is_older_than_ten_minutes_is_forgotten() -> None:
    estimator = ClockEstimator()
    for burst in range(100):
        estimator.add([Rank0().ping(10.0 * burst, 0.001, 0.001)])
    assert estimate(estimator, 990.0).num_pings == 61


# ---- what is news


LAST = Clock(START_NS, 1.0, 1e-5, 0.001, 8)
NEWS = {
    "the first": (None, Clock(START_NS, 1.0, 0.0, 0.001, 8), True),
    "what was expected": (LAST, Clock(START_NS + 10 * S, 1.0001, 0.0, 0.001, 8), False),
    "moved by less than its bound": (LAST, Clock(START_NS + 10 * S, 1.0009, 0.0, 0.001, 8), False),
    "moved by more than its bound": (LAST, Clock(START_NS + 10 * S, 1.0012, 0.0, 0.001, 8), True),
    "a minute later": (LAST, Clock(START_NS + 60 * S, 1.0006, 0.0, 0.001, 8), True),
    "an hour earlier, after the clock was set back": (LAST, Clock(START_NS - 3600 * S, 1.0, 0.0, 0.001, 8), True),
}


@pytest.mark.parametrize("sentence", NEWS)
def test_news(sentence: str) -> None:
    last, now, want = NEWS[sentence]
    assert is_news(last, now) is want


# ---- for readers

FIRST = Clock(START_NS, 2.0, 1e-6, 1e-4, 8)
SECOND = Clock(START_NS + 60 * S, 2.5, 0.0, 1e-4, 8)
AFTER_JUMP = Clock(START_NS + 3700 * S, -3598.0, 0.0, 1e-4, 8)
# sentence: (clocks, own time in seconds from the start, rank 0's)
TIMES: dict[str, tuple[Sequence[Clock], float, float]] = {
    "without an estimate: the own time": ((), 7.0, 7.0),
    "at an estimate: its offset": ((FIRST,), 0.0, 2.0),
    "later: its drift too": ((FIRST,), 100.0, 102.0 + 100e-6),
    "earlier, as before the first: the same": ((FIRST,), -100.0, -98.0 - 100e-6),
    "between two: the nearest": ((FIRST, SECOND), 29.0, 31.0 + 29e-6),
    "nearer to the second": ((FIRST, SECOND), 31.0, 33.5),
    "set forward by an hour: what comes just after goes by the next estimate": ((FIRST, AFTER_JUMP), 3695.0, 97.0),
    "and what came before by the one before": ((FIRST, AFTER_JUMP), 90.0, 92.0 + 90e-6),
}


@pytest.mark.parametrize("sentence", TIMES)
def test_rank_0s_time(sentence: str) -> None:
    clocks, own_s, want_s = TIMES[sentence]
    assert to_rank0_time(START_NS + round(own_s * S), clocks) == START_NS + round(want_s * S)


# ---- a clock against itself

# sentence: (wall, monotonic and doubt of the second look, in ns from the first; seconds by which it was set)
JUMPS = {
    "both go on": (S, S, 0, None),
    "an hour forward": (3601 * S, S, 0, 3600.0),
    "an hour back": (-3599 * S, S, 0, -3600.0),
    "slewed by NTP": (100 * S + 5 * 10**7, 100 * S, 0, None),
    "half a second": (S + S // 2, S, 0, 0.5),
    "less than can be told": (S + 5 * 10**6, S, 0, None),
    "the look itself took that long": (S + 3 * 10**8, S, 4 * 10**8, None),
}


@pytest.mark.parametrize("sentence", JUMPS)
def test_a_wall_clock_that_was_set(sentence: str) -> None:
    wall, monotonic, doubt, want = JUMPS[sentence]
    watch = JumpWatch()
    assert watch.look(START_NS, 77, 0) is None
    assert watch.look(START_NS + wall, 77 + monotonic, doubt) == want
    assert watch.look(START_NS + wall + S, 77 + monotonic + S, 0) is None


def test_two_clocks_are_read_again_where_something_came_between() -> None:
    wall, monotonic = iter([100, 200, 300]), iter([0, 5 * 10**6, 6 * 10**6, 6 * 10**6 + 40])
    assert read_both_clocks(lambda: next(wall), lambda: next(monotonic)) == (200, 6 * 10**6 + 20, 40)


def test_the_closest_of_three_readings_counts_on_a_busy_machine() -> None:
    wall, monotonic = iter([100, 200, 300]), iter([0, 9 * 10**6, 10**7, 13 * 10**6, 2 * 10**7, 3 * 10**7])
    assert read_both_clocks(lambda: next(wall), lambda: next(monotonic)) == (200, 11_500_000, 3 * 10**6)
