"""Who came last and who waited, in meetings that were laid out by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gscalar.model.timeline import NONE, Activity, Lane, Rank, Spans, StepTimeline
from gscalar.views.reporting.meetings import find_meetings

# rank, activity, sequence, start, end: two collectives of one group, and a compute.
ROWS = [
    (0, Activity.REDUCE_GRADIENTS, 0, 1.0, 6.0),
    (1, Activity.REDUCE_GRADIENTS, 0, 4.0, 6.0),
    (2, Activity.REDUCE_GRADIENTS, 0, 2.0, 6.0),
    (0, Activity.REDUCE_GRADIENTS, 1, 7.0, 9.0),
    (1, Activity.REDUCE_GRADIENTS, 1, 8.0, 9.0),
    (2, Activity.COMPUTE, NONE, 7.0, 9.0),
]


def timeline_of(
    rows: list[tuple[int, Activity, int, float, float]], *, source: str = "record", ranks: tuple[Rank, ...] = ()
) -> StepTimeline:
    rank, activity, sequence, start_s, end_s = (np.array(column) for column in zip(*rows, strict=True))
    ranks = ranks or tuple(Rank(rank=each, clock_error_s=0.0) for each in range(3))
    met = activity != Activity.COMPUTE
    group = np.where(met, 0 if source == "record" else NONE, NONE)
    return StepTimeline(
        source=source, name="", ranks=ranks, steps=np.array([0]), begin_s=np.zeros((len(ranks), 1)),
        end_s=np.full((len(ranks), 1), 9.0), accounts=np.zeros((len(ranks), 1, 9)), names=("a",),
        spans=Spans.of(
            len(rows), rank=rank, step=np.zeros(len(rows)), activity=activity, sequence=sequence, group=group,
            lane=np.where(met, Lane.COMMUNICATION, Lane.COMPUTE), start_s=start_s, end_s=end_s,
        ),
    )  # fmt: skip


def waits(timeline: StepTimeline) -> dict[tuple[int, float], float]:
    """Return the wait of each span, by its rank and start."""
    met = find_meetings(timeline, np.arange(len(timeline.spans)))
    places = zip(timeline.spans.rank.tolist(), timeline.spans.start_s.tolist(), strict=True)
    return dict(zip(places, met.wait_s.tolist(), strict=True))


def test_a_rank_waits_for_the_last_one_and_the_rest_is_transfer() -> None:
    got = waits(timeline_of(ROWS))
    want = {(0, 1.0): 3.0, (1, 4.0): 0.0, (2, 2.0): 2.0, (0, 7.0): 1.0, (1, 8.0): 0.0, (2, 7.0): np.nan}
    assert got == pytest.approx(want, nan_ok=True)


def test_the_line_stands_where_the_last_rank_came() -> None:
    timeline = timeline_of(ROWS)
    met = find_meetings(timeline, np.arange(len(timeline.spans)))
    assert met.latest_s.tolist() == [4.0, 8.0]
    assert timeline.spans.rank[met.last].tolist() == [1, 1]
    assert met.waited_s.tolist() == [5.0, 1.0]
    assert met.last_rank(timeline.spans.rank) == 1


def test_one_rank_meets_nobody() -> None:
    timeline = timeline_of(ROWS[:1])
    met = find_meetings(timeline, np.arange(1))
    assert met.number.tolist() == [NONE]
    assert met.last_rank(timeline.spans.rank) is None


GRID = tuple(
    Rank(rank=2 * stage + replica, stage=stage, data_rank=replica, clock_error_s=0.0)
    for stage in range(2)
    for replica in range(2)
)
# In a table of operations, by activity: which of the four ranks (stage, replica) are together.
TOGETHER = {
    Activity.SCATTER_GRADIENTS: [{0, 1}, {2, 3}],
    Activity.REDUCE_EMBEDDING: [{0, 2}, {1, 3}],
    Activity.CLIP: [{0, 1, 2, 3}],
}


@pytest.mark.parametrize("activity", TOGETHER)
def test_a_table_of_operations_has_its_ranks_meet_in(activity: Activity) -> None:
    rows = [(rank, activity, 0, float(rank), 9.0) for rank in range(4)]
    timeline = timeline_of(rows, source="operations", ranks=GRID)
    met: npt.NDArray[np.int64] = find_meetings(timeline, np.arange(4)).number
    got = [set(np.flatnonzero(met == each).tolist()) for each in np.unique(met)]
    assert sorted(got, key=min) == TOGETHER[activity]


def test_who_receives_waits_for_who_sends_on_the_neighbouring_stage() -> None:
    rows = [
        (0, Activity.SEND_FORWARD, 0, 5.0, 5.5),
        (2, Activity.RECEIVE_FORWARD, 0, 1.0, 5.5),
        (3, Activity.SEND_BACKWARD, 0, 7.0, 7.5),
        (1, Activity.RECEIVE_BACKWARD, 0, 6.0, 7.5),
    ]
    timeline = timeline_of(rows, source="operations", ranks=GRID)
    assert waits(timeline) == pytest.approx({(0, 5.0): 0.0, (2, 1.0): 4.0, (3, 7.0): 0.0, (1, 6.0): 1.0})
    met = find_meetings(timeline, np.arange(4))
    assert met.is_pair.all()
    assert met.last_rank(timeline.spans.rank) is None, "pairs are no meeting of all"
