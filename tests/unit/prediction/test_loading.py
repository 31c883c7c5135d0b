"""Forecasts of other numbers of loaders, against sums by hand and a queue that is played batch by batch."""

from __future__ import annotations

import numpy as np
import pytest

from gscalar.model.timeline import NONE, Floats
from gscalar.prediction.loading import MEASURED, LoaderConstants, predict_loader

FREE = LoaderConstants(pass_s_per_byte=0.0, queue_s=0.0, copy_growth=0.0, spread=0.0, elsewhere=0.0)
COSTLY = LoaderConstants(pass_s_per_byte=1e-9, queue_s=0.002, copy_growth=0.5, spread=0.3, elsewhere=0.4)
UNKNOWN = np.full(8, np.nan)


def steps(value: float) -> Floats:
    return np.full(8, value)


def played(rest_s: list[float], work_s: list[float], num_workers: int, num_rounds: int) -> list[float]:
    """Return the steps of a training that takes batches in order from so many loaders, each with two ahead."""
    free_s = [0.0] * num_workers
    taken_s: list[float] = []
    now_s, rests = 0.0, rest_s * num_rounds
    lengths = []
    for at, rest in enumerate(rests):
        worker = at % num_workers
        asked_s = taken_s[at - 2 * num_workers] if at >= 2 * num_workers else 0.0
        free_s[worker] = max(free_s[worker], asked_s) + work_s[at % len(work_s)]
        began_s = now_s
        taken_s.append(max(now_s, free_s[worker]))
        now_s = taken_s[-1] + rest
        lengths.append(now_s - began_s)
    return lengths[-len(rest_s) :]


def test_a_hidden_loader_leaves_the_rest_of_the_step_and_the_residue() -> None:
    got = predict_loader(steps(0.2), steps(0.1), steps(0.1), steps(0.01), 4e6, 0, 4, COSTLY)
    np.testing.assert_allclose(got.residue_s, 0.002 + 0.004 + 0.005)
    np.testing.assert_allclose(got.step_s, 0.1 + 0.011)
    np.testing.assert_allclose(got.wait_s, got.residue_s)
    assert got.residue_sd_s == pytest.approx(0.011 * 0.5)
    assert got.notes == ()


def test_loaders_that_cannot_keep_up_set_the_pace() -> None:
    got = predict_loader(steps(0.5), steps(0.4), steps(0.4), steps(0.0), 0.0, 0, 2, FREE)
    np.testing.assert_allclose(got.step_s, 0.2)
    np.testing.assert_allclose(got.wait_s, 0.1)


def test_a_loader_that_sends_a_batch_pays_for_it_too() -> None:
    got = predict_loader(steps(0.5), steps(0.4), steps(0.4), steps(0.0), 4e6, 0, 2, COSTLY)
    np.testing.assert_allclose(got.step_s, (0.4 + 0.006) / 2)


def test_what_the_device_did_during_the_wait_stays_in_the_step() -> None:
    got = predict_loader(steps(0.2), steps(0.06), steps(0.07), steps(0.0), 0.0, 0, 4, FREE)
    np.testing.assert_allclose(got.step_s, 0.14)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_queue_evens_out_batches_of_unequal_work(num_workers: int) -> None:
    draw = np.random.default_rng(7)
    work_s, rest_s = num_workers * draw.uniform(0.02, 0.1, 60), draw.uniform(0.05, 0.07, 60)
    got = predict_loader(rest_s + work_s, work_s, work_s, np.zeros(60), 0.0, 0, num_workers, FREE)
    want = played(rest_s.tolist(), work_s.tolist(), num_workers, num_rounds=40)
    assert got.step_s.mean() == pytest.approx(np.mean(want), rel=0.03)
    assert got.step_s.mean() < np.maximum(rest_s, work_s / num_workers).mean()


def test_ranks_have_loaders_of_their_own() -> None:
    both = np.stack([steps(0.2), steps(0.5)])
    work = np.stack([steps(0.1), steps(0.4)])
    got = predict_loader(both, work, work, np.zeros_like(both), 0.0, 0, 2, FREE)
    np.testing.assert_allclose(got.step_s, [steps(0.1), steps(0.2)])


def test_more_loaders_of_a_training_that_has_some_add_no_residue_and_take_none_away() -> None:
    got = predict_loader(steps(0.2), steps(0.1), UNKNOWN, steps(0.01), 4e6, 2, 4, COSTLY)
    np.testing.assert_allclose(got.residue_s, 0.002)  # getting a batch, which was in the wait
    np.testing.assert_allclose(got.step_s, 0.102)  # two made one batch in 0.2 s, four do in 0.1 s
    assert len(got.notes) == 1


def test_loaders_that_keep_up_gain_nothing_from_others() -> None:
    got = predict_loader(steps(0.2), steps(0.001), UNKNOWN, steps(0.0), 4e6, 2, 8, COSTLY)
    np.testing.assert_allclose(got.step_s, 0.2)


@pytest.mark.parametrize(
    ("copy_s", "work_s", "want_pass_s", "word"),
    [
        pytest.param(0.0004, 0.1, 0.004, "copy", id="by its copy at 10 GB/s"),
        pytest.param(0.0, 0.1, 0.005, "twentieth", id="by the work"),
        pytest.param(np.nan, np.nan, 0.005, "twentieth", id="by the wait, of which nothing more is known"),
    ],
)
def test_a_batch_of_unknown_size_is_judged_with_a_wider_interval(
    copy_s: float, work_s: float, want_pass_s: float, word: str
) -> None:
    got = predict_loader(steps(0.2), steps(0.1), steps(work_s), steps(copy_s), np.nan, 0, 4, COSTLY)
    want = 0.002 + want_pass_s + 0.5 * np.nan_to_num(copy_s)
    np.testing.assert_allclose(got.residue_s, want)
    assert got.residue_sd_s > 0.5 * want
    assert any(word in note for note in got.notes)


def test_an_unknown_number_of_loaders_is_taken_for_none_and_said() -> None:
    got = predict_loader(steps(0.2), steps(0.1), steps(0.1), steps(0.0), 4e6, NONE, 4, COSTLY)
    np.testing.assert_allclose(got.step_s, 0.106)
    assert any("not known" in note for note in got.notes)


def test_a_step_that_is_not_known_stays_unknown_and_harms_no_other() -> None:
    step_s = steps(0.2)
    step_s[3] = np.nan
    got = predict_loader(step_s, steps(0.1), steps(0.1), steps(0.0), 0.0, 0, 4, FREE)
    assert np.isnan(got.step_s).tolist() == [at == 3 for at in range(8)]
    np.testing.assert_allclose(got.step_s[[0, 7]], 0.1)


def test_a_forecast_of_no_loader_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        predict_loader(steps(0.2), steps(0.1), steps(0.1), steps(0.0), 0.0, 4, 0)


def test_the_shipped_constants_are_of_the_size_of_memory_and_of_calls() -> None:
    assert 1e-11 < MEASURED.pass_s_per_byte < 1e-9
    assert 1e-4 < MEASURED.queue_s < 1e-2
    assert 0 < MEASURED.copy_growth < 2
    assert MEASURED.elsewhere > MEASURED.spread > 0
