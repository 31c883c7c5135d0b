"""Which marked ranges are steps: names, and ranges of several threads."""

from __future__ import annotations

import pytest

from gscalar.importers.nvtx import Range, choose_steps, marked, recognised

STEPS = {
    "step 12": ("step ", 12),
    "Step: 3": ("Step: ", 3),
    "step_7": ("step_", 7),
    "train_step": ("train_step", -1),
    "Training Step 4": ("Training Step ", 4),
    "iteration 12": ("iteration ", 12),
    "iter[5]": ("iter[", 5),
    "global_step=9": ("global_step=", 9),
    "ProfilerStep#21": ("ProfilerStep#", 21),
    "train_batch": ("train_batch", -1),
    "batch 3": ("batch ", 3),
    "  iteration  ": ("iteration", -1),
}
WAITS = ["data_loading", "DataLoader", "next_batch", "load data", "get_next_batch", "data wait"]
WAITS += ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"]
NEITHER = ["optimizer_step", "Optimizer.step#SGD.step", "forward", "epoch 3", "batch", "aten::step", "timestep 4", ""]
NEITHER += ["step 3 forward", "ncclAllReduce", "load_state"]


@pytest.mark.parametrize(("text", "want"), STEPS.items())
def test_a_step_is_known_by_its_name(text: str, want: tuple[str, int]) -> None:
    assert recognised(text) == want


@pytest.mark.parametrize("text", WAITS)
def test_a_wait_for_a_batch_is_known_by_its_name(text: str) -> None:
    assert recognised(text) == ("", -1)


@pytest.mark.parametrize("text", NEITHER)
def test_what_is_no_step_is_not_taken_for_one(text: str) -> None:
    assert recognised(text) is None


def ranges(places: list[tuple[int, int]], family: str = "step ", thread: int = 1, first: int = 0) -> list[Range]:
    return [Range(start, end, thread, family, first + at) for at, (start, end) in enumerate(places)]


def test_the_thread_and_name_with_most_ranges_has_the_steps() -> None:
    few = ranges([(0, 5), (6, 9)], "iteration ", thread=2)
    many = ranges([(0, 3), (3, 6), (6, 9)], first=7)
    got, reason = choose_steps([*few, *many])
    assert list(got) == [7, 8, 9]
    assert reason == ""


def test_of_ranges_in_one_another_the_outer_ones_are_the_steps() -> None:
    outer, inner = ranges([(0, 10), (10, 20)]), ranges([(1, 9), (11, 19)], "train_step")
    got, _ = choose_steps(sorted([*outer, *inner], key=lambda each: each.start_ns))
    assert [each.family for each in got.values()] == ["step ", "step "]


def test_steps_without_numbers_or_with_the_same_ones_are_counted() -> None:
    unnumbered = [Range(at * 10, at * 10 + 9, 1, "train_step") for at in range(3)]
    again = [*ranges([(0, 1), (1, 2)]), *ranges([(2, 3), (3, 4)])]
    assert list(choose_steps(unnumbered)[0]) == [0, 1, 2]
    assert list(choose_steps(again)[0]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("places", "want"),
    [([], "no range"), ([(0, 5)], "only one"), ([(0, 5), (4, 9)], "overlap")],
)
def test_without_steps_the_reason_is_said(places: list[tuple[int, int]], want: str) -> None:
    got, reason = choose_steps(ranges(places))
    assert got == {}
    assert want in reason


def test_waits_are_those_of_the_thread_that_steps() -> None:
    own, loaders = Range(2, 4, 1, ""), Range(0, 20, 9, "")
    steps, waits, reason = marked([[loaders, *ranges([(0, 10), (10, 20)]), own]], origin_ns=0)
    assert steps[0].numbers.tolist() == [0, 1]
    assert [starts.tolist() for starts, _ in waits[0]] == [[2e-9]]
    assert reason == ""


def test_without_steps_all_waits_are_kept() -> None:
    _, waits, _ = marked([[Range(0, 20, 9, ""), Range(2, 4, 1, "")]], origin_ns=0)
    assert [len(starts) for starts, _ in waits[0]] == [2]
