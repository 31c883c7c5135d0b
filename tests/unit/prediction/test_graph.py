from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.model.timeline import Activity
from gscalar.prediction import graph
from gscalar.prediction.graph import Node, Template


@st.composite
def templates(draw: st.DrawFn) -> list[Node]:
    """Nodes in an order of their own. Those of one meeting come out of one layer, so that there is no circle."""
    num_layers = draw(st.integers(1, 4))
    layer_of = [draw(st.integers(0, num_layers - 1)) for _ in range(draw(st.integers(1, 12)))]
    nodes = []
    for layer in layer_of:
        before = [at for at, other in enumerate(layer_of) if other < layer]
        after = draw(st.lists(st.sampled_from(before), unique=True, max_size=3)) if before else []
        # Two meetings a layer, one of them over all replicas, and nodes that meet nobody.
        which = draw(st.integers(0, 2))
        nodes.append(
            Node(
                activity=Activity.COMMUNICATION,
                after=tuple(after),
                meeting=-1 if which == 0 else 10 * layer + which,
                across_replicas=which == 2,
            )
        )
    return nodes


def brute_force(nodes: list[Node], durations: np.ndarray) -> np.ndarray:
    """Compute every end from its definition, again and again, until nothing changes."""
    _, num_replicas, num_frames = durations.shape
    ends = np.zeros_like(durations)
    while True:
        before = ends.copy()
        for frame in range(num_frames):
            for at, node in enumerate(nodes):
                for replica in range(num_replicas):
                    together = [(at, replica)]
                    if node.meeting != -1:
                        together = [
                            (other, each)
                            for other, partner in enumerate(nodes)
                            if partner.meeting == node.meeting
                            for each in (range(num_replicas) if node.across_replicas else [replica])
                        ]
                    starts = [
                        max((before[need, each, frame] for need in nodes[other].after), default=0.0)
                        for other, each in together
                    ]
                    ends[at, replica, frame] = max(starts) + durations[at, replica, frame]
        if np.array_equal(before, ends):
            return ends


@given(templates(), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_ends_are_those_of_the_definition(nodes: list[Node], replicas: int, frames: int, seed: int) -> None:
    durations = np.random.default_rng(seed).integers(0, 9, (len(nodes), replicas, frames)).astype(float)

    got = Template(nodes).ends(durations)

    assert np.array_equal(got, brute_force(nodes, durations))


COMPUTE, COMMUNICATE = Activity.COMPUTE, Activity.COMMUNICATION
# name: nodes, durations by node and replica, ends by node and replica
CASES: dict[str, tuple[list[Node], list[list[float]], list[list[float]]]] = {
    "one after the other": (
        [Node(activity=COMPUTE), Node(activity=COMPUTE, after=(0,))],
        [[2.0], [3.0]],
        [[2.0], [5.0]],
    ),
    "what is given later may come first": (
        [Node(activity=COMPUTE, after=(1,)), Node(activity=COMPUTE)],
        [[2.0], [3.0]],
        [[5.0], [3.0]],
    ),
    "beside one another, then after both": (
        [Node(activity=COMPUTE), Node(activity=COMPUTE), Node(activity=COMPUTE, after=(0, 1))],
        [[2.0], [3.0], [1.0]],
        [[2.0], [3.0], [4.0]],
    ),
    "a send and a receive transfer from the later one on, each for its own time": (
        [
            Node(activity=COMPUTE),
            Node(activity=COMPUTE),
            Node(activity=COMMUNICATE, after=(0,), meeting=7),
            Node(activity=COMMUNICATE, after=(1,), meeting=7),
        ],
        [[2.0], [5.0], [1.0], [1.5]],
        [[2.0], [5.0], [6.0], [6.5]],
    ),
    "a meeting of one replica does not wait for another": (
        [
            Node(activity=COMPUTE),
            Node(activity=COMMUNICATE, after=(0,), meeting=0),
        ],
        [[2.0, 9.0], [1.0, 1.0]],
        [[2.0, 9.0], [3.0, 10.0]],
    ),
    "a meeting over all replicas waits for the last": (
        [
            Node(activity=COMPUTE),
            Node(activity=COMMUNICATE, after=(0,), meeting=0, across_replicas=True),
            Node(activity=COMPUTE, after=(1,)),
        ],
        [[2.0, 9.0], [1.0, 1.0], [1.0, 2.0]],
        [[2.0, 9.0], [10.0, 10.0], [11.0, 12.0]],
    ),
    "a meeting over nodes and replicas waits for the last of all": (
        [
            Node(activity=COMPUTE),
            Node(activity=COMPUTE),
            Node(activity=COMMUNICATE, after=(0,), meeting=0, across_replicas=True),
            Node(activity=COMMUNICATE, after=(1,), meeting=0, across_replicas=True),
        ],
        [[2.0, 3.0], [4.0, 8.0], [1.0, 1.0], [2.0, 2.0]],
        [[2.0, 3.0], [4.0, 8.0], [9.0, 9.0], [10.0, 10.0]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_node_ends_when_what_it_needs_allows(case: str) -> None:
    nodes, durations, want = CASES[case]

    got = Template(nodes).ends(np.array(durations)[:, :, None])

    assert got[:, :, 0].tolist() == want


def test_a_frame_lasts_until_the_last_node_of_all_replicas() -> None:
    template = Template([Node(activity=COMPUTE), Node(activity=COMPUTE)])

    got = template.frame_s(np.array([[[1.0, 5.0], [2.0, 1.0]], [[7.0, 1.0], [1.0, 1.0]]]))

    assert got.tolist() == [7.0, 5.0]


CIRCLES = {
    "two nodes": [Node(activity=COMPUTE, after=(1,)), Node(activity=COMPUTE, after=(0,))],
    "a node that needs itself": [Node(activity=COMPUTE, after=(0,))],
    "a node that meets what it needs": [
        Node(activity=COMMUNICATE, meeting=0),
        Node(activity=COMMUNICATE, after=(0,), meeting=0),
    ],
    "two meetings, each of which needs the other": [
        Node(activity=COMMUNICATE, meeting=0),
        Node(activity=COMMUNICATE, after=(0,), meeting=1),
        Node(activity=COMMUNICATE, meeting=1),
        Node(activity=COMMUNICATE, after=(2,), meeting=0),
    ],
}


@pytest.mark.parametrize("case", CIRCLES)
def test_a_circle_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match="circle"):
        Template(CIRCLES[case])


@pytest.mark.parametrize("most_cells", [1, 7, 10**9], ids="{} cells in one pass".format)
def test_sets_of_durations_that_are_replayed_together_do_not_touch(
    most_cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "_MOST_CELLS", most_cells)
    template = Template(
        [Node(activity=COMPUTE), Node(activity=COMMUNICATE, after=(0,), meeting=0, across_replicas=True)]
    )
    rng = np.random.default_rng(3)
    sets = [rng.random((2, 3, num_frames)) for num_frames in (1, 4, 2)]

    got = template.frames_of(sets)

    assert [each.tolist() for each in got] == [template.frame_s(each).tolist() for each in sets]
    assert template.frames_of([]) == []


def test_only_what_moves_bytes_between_ranks_communicates() -> None:
    moving = {Activity.COMMUNICATION, Activity.SEND_FORWARD, Activity.RECEIVE_BACKWARD, Activity.CLIP}
    still = {Activity.OTHER, Activity.FORWARD, Activity.BACKWARD, Activity.OPTIMIZER, Activity.H2D, Activity.GC}
    order = sorted(moving | still)

    got = Template([Node(activity=each) for each in order]).communicates

    assert {each for each, communicates in zip(order, got, strict=True) if communicates} == moving
