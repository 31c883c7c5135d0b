"""The replay of a published production trace against its authors' own analysis of it.

ByteDance-Seed/StragglerAnalysis, job AR: 64 GPUs (dp 4 x pp 4 x tp 4), 44 steps, one slow worker at dp rank 0 of the
first stage. Their replay uses other data structures and another language of events; ours shares its definitions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.importers.operations import read_operations
from gscalar.model.timeline import Activity, Floats
from gscalar.prediction import edits
from gscalar.prediction.forecast import Replay
from gscalar.prediction.graph import Bools
from gscalar.prediction.measured import MeasuredSteps, ideal_durations
from gscalar.prediction.pipeline import measure_pipeline

pytest.importorskip("pyarrow", reason="needs pyarrow: .venv/bin/pip install -c constraints.txt -e '.[traces]'")


@pytest.fixture(scope="module")
def published(shared_data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared_data / "straggler/result-AR.json").read_text())
    return found


@pytest.fixture(scope="module")
def replay(shared_data: Path) -> Replay:
    return Replay.of(measure_pipeline(read_operations(shared_data / "straggler/trace-AR.parquet")))


def by_step(replay: Replay, published: dict[str, float]) -> list[float]:
    return [published[str(step)] for step in replay.measured.steps]


def slowdown_with(replay: Replay, kept: Bools) -> float:
    """S where only these operations are as measured, `(num_nodes, num_replicas)`, and all others ideal."""
    steps = replay.measured
    durations = np.where(kept[:, :, None], steps.durations, ideal_durations(steps))
    return float(steps.template.frame_s(durations).mean() / replay.ideal_s.mean())


def of_type(steps: MeasuredSteps, *activities: Activity) -> Bools:
    return np.broadcast_to(steps.nodes(*activities)[:, None], steps.durations.shape[:2])


def test_all_steps_are_whole(replay: Replay, published: dict[str, Any]) -> None:
    assert sorted(map(str, replay.measured.steps)) == sorted(published["step_t_base"])
    assert replay.measured.notes == ()
    assert replay.measured.rank_index.shape == (4, 4)


@pytest.mark.parametrize(
    ("what", "key"),
    [("measured", "step_t_base"), ("replayed", "step_t_nodelay"), ("ideal", "step_t_noblk")],
)
def test_each_step_takes_what_their_analysis_says(
    replay: Replay, published: dict[str, Any], what: str, key: str
) -> None:
    got: dict[str, Floats] = {
        "measured": replay.measured.frame_s,
        "replayed": replay.replayed_s,
        "ideal": replay.ideal_s,
    }

    assert got[what] == pytest.approx(by_step(replay, published[key]), rel=0.002)


def test_the_slowdown_is_theirs(replay: Replay, published: dict[str, Any]) -> None:
    assert replay.slowdown == pytest.approx(published["blocking_slowdown"], rel=0.002)
    assert replay.replayed_s / replay.ideal_s == pytest.approx(
        by_step(replay, published["blocking_step_slowdown"]), rel=0.002
    )


def test_the_replay_misses_as_much_as_theirs(replay: Replay, published: dict[str, Any]) -> None:
    assert replay.error == pytest.approx(published["launch_slowdown"] - 1, abs=0.0005)


@pytest.mark.parametrize("replica", range(4))
def test_one_data_parallel_rank_alone_slows_as_much_as_they_say(
    replay: Replay, published: dict[str, Any], replica: int
) -> None:
    kept = np.zeros(replay.measured.durations.shape[:2], bool)
    kept[:, replica] = True

    want = published["blocking_decompose_by_dp_rank"][str(replica)]
    assert slowdown_with(replay, kept) == pytest.approx(want, rel=0.002)


@pytest.mark.parametrize("stage", range(4))
def test_one_stage_alone_slows_as_much_as_they_say(replay: Replay, published: dict[str, Any], stage: int) -> None:
    kept = np.broadcast_to((replay.measured.template.stage == stage)[:, None], replay.measured.durations.shape[:2])

    want = published["blocking_decompose_by_stage"][str(stage)]
    assert slowdown_with(replay, kept) == pytest.approx(want, rel=0.002)


TYPES = {
    "forward-compute": (Activity.FORWARD,),
    "backward-compute": (Activity.BACKWARD,),
    "params-all-gather": (Activity.GATHER_PARAMETERS,),
    "grads-reduce-scatter": (Activity.SCATTER_GRADIENTS,),
    "embedding-grads-all-reduce": (Activity.REDUCE_EMBEDDING,),
    "optimizer": (Activity.OPTIMIZER,),
    "forward-pp-comm": (Activity.SEND_FORWARD, Activity.RECEIVE_FORWARD),
    "backward-pp-comm": (Activity.SEND_BACKWARD, Activity.RECEIVE_BACKWARD),
}


@pytest.mark.parametrize("optype", TYPES)
def test_one_type_of_operation_alone_slows_as_much_as_they_say(
    replay: Replay, published: dict[str, Any], optype: str
) -> None:
    want = published["blocking_decompose_by_optype"][optype]

    assert slowdown_with(replay, of_type(replay.measured, *TYPES[optype])) == pytest.approx(want, rel=0.002)


# What their tool gives for the same questions, by an independent replay of the table.
GAINS = {
    "all communication at no time": (edits.without_transfers, 1.017, 0.004),
    "all compute at the ideal": (edits.ideal_compute, 1.925, 0.004),
    "both": (edits.joined([edits.ideal_compute, edits.without_transfers]), 2.006, 0.004),
    "the slow worker at the speed of its peers": (edits.replaced([(0, 0)]), 2.02, 0.0202),
}


@pytest.mark.parametrize("case", GAINS)
def test_a_fix_gains_what_is_known(replay: Replay, case: str) -> None:
    edit, want, tolerance = GAINS[case]

    (edited_s,) = replay.edited_s([edit])

    assert replay.replayed_s.mean() / edited_s.mean() == pytest.approx(want, abs=tolerance)
