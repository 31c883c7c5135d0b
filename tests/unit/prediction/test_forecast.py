from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gscalar.model.timeline import Activity
from gscalar.prediction import edits
from gscalar.prediction.data_parallel import measure_data_parallel
from gscalar.prediction.forecast import Forecast, Proposal, Replay
from gscalar.prediction.graph import Node, Template
from gscalar.prediction.measured import MeasuredSteps
from gscalar.testing.timelines import data_parallel_timeline

HALVED = edits.scaled(Activity.COMPUTE, by=0.5)
NOTHING = edits.scaled(Activity.COMPUTE, by=1.0)


def proposal(uncertainty: float = 0.2, **changes: object) -> Proposal:
    plain = Proposal(name="fix", knob="a knob", likely=HALVED, ceiling=HALVED, uncertainty=uncertainty)
    return replace(plain, **changes)  # type: ignore[arg-type]


def one_node(frames: list[float], measured: list[float] | None = None) -> Replay:
    """Steps of a single compute each, and what was measured of them."""
    return Replay.of(
        MeasuredSteps(
            template=Template([Node(activity=Activity.COMPUTE, label="compute")]),
            durations=np.array([[frames]]),
            frame_s=np.array(frames if measured is None else measured),
            steps=np.arange(len(frames)),
            rank_index=np.array([[0]]),
        )
    )


def forecast(replay: Replay, asked: Proposal, clock_error_s: float = 0.0) -> Forecast:
    (found,) = replay.forecast([asked], clock_error_s=clock_error_s)
    return found


def half_width(found: Forecast) -> float:
    assert found.predicted_step_s - found.low_s == pytest.approx(found.high_s - found.predicted_step_s)
    return found.high_s - found.predicted_step_s


def test_a_forecast_is_a_median_of_steps_and_a_gain_of_means() -> None:
    got = forecast(one_node([1.0, 2.0, 9.0]), proposal())

    assert got.predicted_step_s == 1.0
    assert got.predicted_mean_s == 2.0
    assert got.gain == 2.0
    assert (got.name, got.knob) == ("fix", "a knob")


def test_what_the_replay_missed_stays_in_the_prediction() -> None:
    got = forecast(one_node([1.0, 1.0, 1.0], measured=[1.1, 1.1, 1.1]), proposal(uncertainty=0.0))

    assert got.predicted_step_s == pytest.approx(0.5 + 0.1)
    assert got.gain == pytest.approx(2.0)
    # The replay is 10 % short, and might be so of what is predicted.
    assert half_width(got) == pytest.approx(1.645 * 0.1 * 0.6)


def test_a_prediction_is_never_negative() -> None:
    got = forecast(one_node([1.0] * 3, measured=[0.2] * 3), proposal(likely=edits.scaled(Activity.COMPUTE, by=0.0)))

    assert (got.low_s, got.predicted_step_s) == (0.0, 0.0)


# Steps that are all the same leave nothing to resample: the interval is the other errors alone, at 1.645 deviations.
WIDTHS = {
    "nothing is uncertain": (proposal(uncertainty=0.0), 0.0, 0.0),
    "a share of what the step changes by": (proposal(uncertainty=0.2), 0.0, 1.645 * 0.2 * 0.5),
    "what the edit adds of its own": (proposal(uncertainty=0.0, extra_s=0.03), 0.0, 1.645 * 0.03),
    "clocks": (proposal(uncertainty=0.0), 0.01, 1.645 * 0.01),
    "clocks of which nothing is known": (proposal(uncertainty=0.0), math.nan, 0.0),
    "independent errors": (
        proposal(uncertainty=0.2, extra_s=0.03),
        0.01,
        1.645 * math.sqrt(0.1**2 + 0.03**2 + 0.01**2),
    ),
    "an edit that changes nothing": (proposal(uncertainty=0.5, likely=NOTHING), 0.0, 0.0),
    "an edit that makes steps longer": (
        proposal(uncertainty=0.2, likely=edits.scaled(Activity.COMPUTE, by=1.5)),
        0.0,
        1.645 * 0.2 * 0.5,
    ),
}


@pytest.mark.parametrize("case", WIDTHS)
def test_the_interval_is_as_wide_as_its_errors(case: str) -> None:
    asked, clock_error_s, want = WIDTHS[case]

    got = forecast(one_node([1.0] * 20), asked, clock_error_s)

    assert half_width(got) == pytest.approx(want, abs=1e-12)


def test_steps_that_differ_widen_the_interval_and_many_of_them_narrow_it() -> None:
    same, few, many = np.ones(10), np.linspace(0.8, 1.2, 10), np.linspace(0.8, 1.2, 1000)

    found = [forecast(one_node(each.tolist()), proposal(uncertainty=0.0)) for each in (same, few, many)]

    none, wide, narrow = (each.high_s - each.low_s for each in found)
    assert none == 0.0
    # The median of n values, evenly spread over a range, has a deviation of range / (2 sqrt(n)); the edit halves it.
    assert wide == pytest.approx(2 * 1.645 * 0.2 / (2 * math.sqrt(10)), rel=0.2)
    assert narrow == pytest.approx(2 * 1.645 * 0.2 / (2 * math.sqrt(1000)), rel=0.2)


@settings(max_examples=30)
@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=12),
    st.just(0.0) | st.floats(0.01, 2),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_the_interval_holds_the_prediction_and_grows_with_the_uncertainty(
    frames: list[float], by: float, uncertainty: float, more: float, extra_s: float
) -> None:
    replay = one_node(frames)
    likely = edits.scaled(Activity.COMPUTE, by=by)

    got, wider = replay.forecast(
        [
            proposal(uncertainty=uncertainty, extra_s=extra_s, likely=likely),
            proposal(uncertainty=uncertainty + more, extra_s=extra_s, likely=likely),
        ]
    )

    assert 0 <= got.low_s <= got.predicted_step_s <= got.high_s
    assert wider.low_s <= got.low_s + 1e-12
    assert wider.high_s >= got.high_s - 1e-12
    assert wider.predicted_step_s == got.predicted_step_s


@pytest.mark.parametrize("num_frames", [1, 2, 7])
def test_an_edit_may_have_other_frames_than_were_measured(num_frames: int) -> None:
    def drawn(steps: MeasuredSteps) -> MeasuredSteps:
        return replace(steps, durations=np.resize(steps.durations, (1, 1, num_frames)) * 2)

    got = forecast(one_node([1.0] * 3, measured=[1.1] * 3), proposal(likely=drawn, ceiling=drawn))

    assert got.predicted_step_s == pytest.approx(2.1)
    assert got.gain == pytest.approx(0.5)


def test_a_ceiling_is_not_below_what_is_likely() -> None:
    got = forecast(one_node([1.0]), proposal(ceiling=NOTHING))

    assert (got.gain, got.ceiling) == (2.0, 2.0)


def test_the_same_steps_give_the_same_forecast_alone_and_among_others() -> None:
    steps = measure_data_parallel(data_parallel_timeline(np.random.default_rng(1), jitter=0.2, slow={2: 1.5}))
    overlap = edits.overlapped(latency_s=1e-4)  # replays another template
    asked = [proposal(), proposal(name="overlap", likely=overlap, ceiling=edits.without_transfers), proposal()]

    got = Replay.of(steps).forecast(asked)

    assert got == Replay.of(steps).forecast(asked)
    assert got == [forecast(Replay.of(steps), each) for each in asked]
    assert got[0] == got[2]
    assert [each.name for each in got] == ["fix", "overlap", "fix"]


def test_no_proposals_give_no_forecasts() -> None:
    assert one_node([1.0]).forecast([]) == []


def test_steps_that_take_no_time_have_no_slowdown() -> None:
    got = one_node([0.0, 0.0])

    assert (got.slowdown, got.measured_over_ideal, got.error) == (1.0, 1.0, 0.0)
