"""A whole run in this process, trained with the toy framework: loop, borders, checkpoints, resume, ends."""

from __future__ import annotations

import math
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.base.errors import ScalarError
from gscalar.model import events
from gscalar.model.shares import unpack_shares
from gscalar.runtime import recording
from gscalar.runtime.session import Run
from gscalar.state.checkpoints import list_checkpoints
from gscalar.state.home import Home
from gscalar.state.records import Frame, read_logged, read_record
from gscalar.testing.toy import ToyData, ToyLoss, ToyModel, ToySGD, open_toy_run
from gscalar.views.samples import consumed_samples

SIZE = 26  # in batches of 4: seven an epoch, the last of two


class Trained:
    """A run with what it trains."""

    def __init__(self, run: Run, home: Path, data: ToyData | None = None) -> None:
        self.run = run
        self.folder = Home(home).run(run.id)
        self.model = ToyModel(3)
        self.optimizer = ToySGD(self.model, lr=0.02)
        self.data = data or ToyData.make(SIZE)
        run.prepare(self.model, self.optimizer, self.data)

    def train(self, *, until: int | None = None, **limits: int) -> list[int]:
        """Train with noise on the loss, and leave the loop after step `until`; return the steps done."""
        done = []
        for batch in self.run.batches(self.data, **limits):
            loss = self.model.loss(batch)
            noise = random.random()
            if self.run.step(ToyLoss(loss.value, loss.gradient * (1 + 0.1 * noise))):
                done.append(self.run.state.step)
                self.run.log({"noise": noise})
                if until is not None and self.run.state.step == until:
                    break
        return done

    def events(self, kind: type[events.Event], attempt: int = 0) -> list[Any]:
        path = self.folder.worker_record(attempt, 0)
        told = [item.event for item in read_record(path) if isinstance(item, Frame)]
        return [event for event in told if isinstance(event, kind)]


Begin = Callable[..., Trained]


@pytest.fixture
def begin(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Open a run in this process; what is still open is finished after the test."""
    runs: list[Run] = []

    def call(run_id: str | None = None, data: ToyData | None = None, **arguments: Any) -> Trained:
        if run_id is not None:
            monkeypatch.setenv("GSCALAR_RUN_ID", run_id)
        runs.append(open_toy_run(**{"checkpoint": {"every_s": None}, **arguments}))
        return Trained(runs[-1], home, data)

    yield call
    for run in reversed(runs):
        run.finish()


# ---- the loop -------------------------------------------------------------------------------------


def test_every_step_is_counted_and_recorded(begin: Begin) -> None:
    trained = begin()
    assert trained.train(epochs=2) == list(range(1, 15))
    trained.run.finish()
    steps = trained.events(events.Step)
    assert [step.step for step in steps] == list(range(1, 15))
    assert {step.total_steps for step in steps} == {14}
    assert [step.epoch for step in steps] == [0] * 7 + [1] * 7
    assert trained.run.state.samples == sum(step.samples for step in steps) == 2 * SIZE
    assert [step.own_samples for step in steps] == [step.samples for step in steps]  # alone, all are its own
    assert trained.run.state.epoch == 2
    assert all(step.duration_s > 0 for step in steps)
    (finished,) = trained.events(events.Finished)
    assert finished.step == 14
    assert len(finished.digests["weights"]) == len(finished.digests["data"]) == 64


def test_every_step_tells_its_samples_and_an_attempt_tells_the_order_once(begin: Begin) -> None:
    trained = begin(plan={"accumulate": 2})
    trained.train(epochs=1)
    trained.train(epochs=1)
    shares = [list(unpack_shares(step.shares)) for step in trained.events(events.Step)]
    assert shares[:4] == [[(0, 0, 0, 4), (0, 0, 4, 8)], [(0, 0, 8, 12), (0, 0, 12, 16)],
                          [(0, 0, 16, 20), (0, 0, 20, 24)], [(0, 0, 24, 26)]]  # fmt: skip
    assert shares[4][0] == (0, 1, 0, 4)
    (order,) = trained.events(events.SampleOrder)
    assert (order.data, order.size, order.seed, order.shuffle, order.global_batch) == (
        0,
        SIZE,
        trained.run.seed,
        True,
        4,
    )
    for epoch in range(2):
        assert consumed_samples(trained.folder, epoch) == Counter(range(SIZE))


def test_a_loader_with_another_batch_size_keeps_the_global_batch_and_says_so(begin: Begin) -> None:
    first = begin("smaller", checkpoint={"every_steps": 2})
    first.train(steps=2)
    first.run.finish()
    again = begin("smaller", data=ToyData.make(SIZE, batch_size=3), checkpoint={"every_s": None})
    turns = 0
    for batch in again.run.batches(again.data, epochs=1):
        turns += 1
        assert len(batch[1]) <= 3
        again.run.step(again.model.loss(batch))
    again.run.finish()
    steps = again.events(events.Step, attempt=1)
    assert [step.samples for step in steps] == [4, 4, 4, 4, 2]
    assert (turns, {step.total_steps for step in steps}) == (9, {7})
    assert [note.code for note in again.events(events.Note, attempt=1)] == ["batch-size-changed"]
    assert consumed_samples(again.folder, 0) == Counter(range(SIZE))


def test_micro_steps_give_heartbeats_so_that_a_long_step_is_no_hang(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_BEAT_EVERY_S", 0.0)
    trained = begin(plan={"accumulate": 3})
    trained.train(steps=2)
    # The epoch's seven micro-steps are three steps: of the first two steps, two micro-steps each end none.
    assert [beat.phase for beat in trained.events(events.Beat)].count("training") == 4


def test_an_accumulated_step_is_one_step_and_the_epochs_end_ends_it(begin: Begin) -> None:
    trained = begin(plan={"accumulate": 3})
    assert trained.train(epochs=2) == [1, 2, 3, 4, 5, 6]
    assert [step.samples for step in trained.events(events.Step)] == [12, 12, 2] * 2


def test_limits_count_from_the_start_of_the_run(begin: Begin) -> None:
    trained = begin()
    assert trained.train(steps=3) == [1, 2, 3]
    assert trained.train(steps=5) == [4, 5]
    assert trained.train(steps=5) == []
    assert trained.train(epochs=1) == [6, 7]
    assert trained.train() == list(range(8, 15))
    assert trained.train(epochs=1, steps=16) == [15, 16]


def test_tokens_are_counted_where_they_are_given(begin: Begin) -> None:
    trained = begin()
    for batch in trained.run.batches(trained.data, steps=2):
        trained.run.step(trained.model.loss(batch), tokens=10)
    assert trained.run.state.tokens == 20


def test_the_plans_schedule_sets_the_rate_by_the_optimizer_step(begin: Begin) -> None:
    trained = begin(plan={"accumulate": 2, "schedule": {"kind": "linear", "warmup_steps": 2}})
    trained.train(epochs=1)
    got = [step.lr for step in trained.events(events.Step)]
    assert got == pytest.approx([0.01, 0.02, 0.02, 0.01])
    assert trained.optimizer.lr == pytest.approx(0.01)


def test_the_parts_of_step_do_what_step_does(begin: Begin) -> None:
    whole, parts = begin(), begin()
    whole.train(epochs=1)
    for batch in parts.run.batches(parts.data, epochs=1):
        loss, noise = parts.model.loss(batch), random.random()
        parts.run.backward(ToyLoss(loss.value, loss.gradient * (1 + 0.1 * noise)))
        parts.run.sync()
        parts.run.update()
    assert parts.model.weights.tolist() == whole.model.weights.tolist()


def test_a_loop_of_the_scripts_own_steps_saves_and_counts(begin: Begin) -> None:
    trained = begin(checkpoint={"every_steps": 2})
    batch = (trained.data.x, trained.data.y)
    assert [trained.run.step(trained.model.loss(batch)) for _ in range(3)] == [True] * 3
    trained.run.finish()
    assert [saved.step for saved in trained.events(events.CheckpointSaved)] == [2]


ORDERS = {
    "batches": lambda run, trained: next(iter(run.batches(trained.data))),
    "step": lambda run, trained: run.step(ToyLoss(1.0, trained.model.gradient)),
    "backward": lambda run, trained: run.backward(ToyLoss(1.0, trained.model.gradient)),
}


@pytest.mark.parametrize("call", ORDERS)
def test_before_prepare_there_is_nothing_to_train(call: str, begin: Begin, home: Path) -> None:
    trained = begin()
    unprepared = open_toy_run()
    with pytest.raises(ScalarError, match=rf"run\.{call} ") as caught:
        ORDERS[call](unprepared, trained)
    assert caught.value.code == "not-prepared"
    unprepared.finish()


def test_parameter_servers_need_a_script_that_takes_its_part(begin: Begin) -> None:
    with pytest.raises(ScalarError) as caught:
        begin(plan={"sync": {"kind": "parameter_servers"}})
    assert caught.value.code == "not-distributed"
    assert caught.value.next_step.startswith("Set plan.sync.kind=allreduce.")
    assert "gscalar.keras.distribute()" in caught.value.next_step


def test_models_and_optimizers_are_prepared_once_and_data_as_often_as_wanted(begin: Begin) -> None:
    trained = begin()
    assert trained.run.prepare(trained.data) is trained.data
    with pytest.raises(ScalarError) as caught:
        trained.run.prepare(ToyModel(3), trained.optimizer)
    assert caught.value.code == "prepare-twice"


# ---- checkpoints and resume -----------------------------------------------------------------------


def test_a_run_that_goes_on_without_a_checkpoint_says_so(begin: Begin) -> None:
    begin("lost").run.finish()
    assert [note.code for note in begin("lost").events(events.Note, attempt=1)] == ["begins-anew"]


def resumed(begin: Begin, stop_at: int, **plan: Any) -> Trained:
    """Train until a step, drop everything, and train on to the end in a new run object."""
    arguments = {"plan": plan, "checkpoint": {"every_steps": 3}}
    first = begin(f"stopped{stop_at}", **arguments)
    first.train(epochs=2, until=stop_at)
    first.run.finish()
    again = begin(f"stopped{stop_at}", **arguments)
    again.train(epochs=2)
    again.run.finish()
    return again


def test_a_loop_of_the_scripts_own_has_its_checkpoint_when_the_step_returns(begin: Begin) -> None:
    trained = begin(checkpoint={"every_s": None})
    for step in (1, 2):
        if step == 2:
            trained.run.checkpoint()
        trained.run.step(ToyLoss(1.0, np.zeros(3)))
    assert [saved.step for saved in list_checkpoints(trained.folder.checkpoints)] == [2]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_ends_with_the_weights_of_the_undisturbed_one(accumulate: int, begin: Begin) -> None:
    undisturbed = begin("undisturbed", plan={"accumulate": accumulate}, checkpoint={"every_steps": 3})
    undisturbed.train(epochs=2)
    for stop_at in (1, 4, 8):
        again = resumed(begin, stop_at, accumulate=accumulate)
        assert again.model.weights.tolist() == undisturbed.model.weights.tolist(), stop_at
        steps = [step.step for step in again.events(events.Step, attempt=1)]
        assert steps[0] == 3 * ((stop_at - 1) // 3) + 1, "the checkpoint is taken when the next batch is asked for"
        assert steps[-1] == undisturbed.run.state.step
        assert again.run.state.samples == 2 * SIZE


def test_where_it_goes_on_is_recorded(begin: Begin) -> None:
    again = resumed(begin, 5)
    (event,) = again.events(events.Resumed, attempt=1)
    assert (event.step, event.path) == (3, "checkpoints/step-000000000003")


def test_what_a_script_does_after_a_step_lies_before_the_steps_checkpoint(begin: Begin) -> None:
    trained = begin(checkpoint={"every_steps": 3})
    trained.train(steps=3)
    trained.run.finish()
    path = trained.folder.worker_record(0, 0)
    (saved_at,) = (item.offset for item in read_record(path) if isinstance(item.event, events.CheckpointSaved))
    last = list(read_logged(path))[-1]
    assert last.step == 3
    points = [item.offset for item in read_record(path) if isinstance(item.event, events.Points)]
    assert max(points) < saved_at


def test_the_end_of_a_loop_writes_a_checkpoint_and_a_second_one_of_the_same_step_is_none(begin: Begin) -> None:
    trained = begin(checkpoint={"every_steps": 4, "keep": 9})
    trained.train(steps=8)
    trained.train(steps=9)
    trained.run.finish()
    assert [saved.step for saved in trained.events(events.CheckpointSaved)] == [4, 8, 9]


def test_no_checkpoints_at_all_where_none_are_wanted(begin: Begin) -> None:
    trained = begin()
    trained.train(epochs=1)
    trained.run.finish()
    assert list_checkpoints(trained.folder.checkpoints) == []


def test_a_wish_is_met_at_the_next_border_once(begin: Begin) -> None:
    trained = begin(checkpoint={"every_s": None, "keep": 9}, plan={"accumulate": 2})
    for number, batch in enumerate(trained.run.batches(trained.data, steps=3)):
        if number == 0:
            trained.run.checkpoint()
        trained.run.step(trained.model.loss(batch))
    trained.run.finish()
    assert [saved.step for saved in trained.events(events.CheckpointSaved)] == [1]


def test_what_the_script_keeps_in_the_state_comes_back(begin: Begin) -> None:
    first = begin("kept", checkpoint={"every_steps": 2})
    for batch in first.run.batches(first.data, steps=2):
        first.run.step(first.model.loss(batch))
        first.run.state["best"] = 10.0 * first.run.state.step
    first.run.finish()
    again = begin("kept")
    assert again.run.state.step == 2
    assert again.run.state.setdefault("best", 0.0) == 20.0


def test_a_damaged_checkpoint_is_passed_over_with_a_note(begin: Begin) -> None:
    first = begin("damaged", checkpoint={"every_steps": 2, "keep": 3})
    first.train(steps=4)
    first.run.finish()
    newest = list_checkpoints(first.folder.checkpoints)[0].path
    (newest / "arrays" / "weights.npy").write_bytes(b"rot")
    again = begin("damaged")
    assert again.run.state.step == 2
    (note,) = again.events(events.Note, attempt=1)
    assert note.code == "checkpoint-damaged"
    assert newest.name in note.text


# ---- evaluation and reduction ---------------------------------------------------------------------


def test_an_evaluation_meets_every_sample_once_in_order_and_leaves_the_training_as_it_was(begin: Begin) -> None:
    val = ToyData.make(10)
    plain, evaluating = begin(), begin()
    plain.train(steps=6)
    for batch in evaluating.run.batches(evaluating.data, steps=6):
        loss, noise = evaluating.model.loss(batch), random.random()
        evaluating.run.step(ToyLoss(loss.value, loss.gradient * (1 + 0.1 * noise)))
        met = [y for _, targets in evaluating.run.eval_batches(val) for y in targets]
        assert met == val.y.tolist()
    assert evaluating.model.weights.tolist() == plain.model.weights.tolist()
    assert evaluating.events(events.Beat)


REDUCED: dict[str, tuple[Any, Any, float]] = {
    "one number": (3.0, None, 3.0),
    "a list": ([1.0, 2.0, 6.0], None, 3.0),
    "weighted": ([1.0, 4.0], [3, 1], 1.75),
    "a weight of nothing": ([1.0, 100.0], [1, 0], 1.0),
    "nothing at all": ([], [], math.nan),
    "only weights of nothing": ([1.0], [0.0], math.nan),
}


@pytest.mark.parametrize("case", REDUCED)
def test_the_mean_over_all(case: str, begin: Begin) -> None:
    values, weights, want = REDUCED[case]
    assert begin().run.reduce(values, weights) == pytest.approx(want, nan_ok=True)


def test_values_and_weights_of_different_numbers_are_refused(begin: Begin) -> None:
    with pytest.raises(ValueError, match="2 values and 1 weights"):
        begin().run.reduce([1.0, 2.0], [1.0])


# ---- ends -----------------------------------------------------------------------------------------


def test_sigterm_saves_at_the_next_border_and_ends_resumable(begin: Begin) -> None:
    trained = begin("stopped", plan={"accumulate": 2}, checkpoint={"every_s": 1e6})
    done = []

    def train() -> None:
        for number, batch in enumerate(trained.run.batches(trained.data, epochs=3)):
            if number == 2:
                signal.raise_signal(signal.SIGTERM)
            done.append(trained.run.step(trained.model.loss(batch)))

    with pytest.raises(SystemExit) as caught:
        train()
    assert caught.value.code == 75
    assert done == [False, True, False, True]
    assert [saved.step for saved in trained.events(events.CheckpointSaved)] == [2]
    assert [event.step for event in trained.events(events.StopAcknowledged)] == [2]
    assert [event.status for event in trained.events(events.RunEnded)] == ["interrupted"]
    assert trained.events(events.Finished) == []
    assert begin("stopped").run.state.step == 2


NONFINITE: dict[str, tuple[str, bool]] = {"warn goes on": ("warn", False), "stop ends the training": ("stop", True)}


@pytest.mark.parametrize("case", NONFINITE)
def test_a_loss_that_is_not_finite(case: str, begin: Begin) -> None:
    choice, raises = NONFINITE[case]
    trained = begin(on_nonfinite=choice)
    caught = None
    try:
        for batch in trained.run.batches(trained.data, steps=4):
            loss = trained.model.loss(batch)
            trained.run.step(ToyLoss(math.nan, loss.gradient) if trained.run.state.step == 2 else loss)
    except ScalarError as error:
        caught = error
    assert (caught is not None) is raises
    assert [(event.step, event.rank, event.what) for event in trained.events(events.Nonfinite)] == [(3, 0, "loss")]
    assert trained.run.state.step == (2 if raises else 4)
    if caught is not None:
        assert caught.code == "nonfinite"
        assert "step 3 on rank 0" in str(caught)


def test_as_a_context_it_finishes_at_the_end_of_the_block(begin: Begin) -> None:
    trained = begin()
    with trained.run as run:
        trained.train(steps=1)
    run.finish()
    assert [event.status for event in trained.events(events.RunEnded)] == ["completed"]


def test_an_error_inside_the_block_fails_the_run_even_if_the_script_goes_on(begin: Begin) -> None:
    trained = begin()

    def script() -> None:
        with trained.run:
            trained.train(steps=2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        script()
    trained.run.finish()
    assert [event.status for event in trained.events(events.RunEnded)] == ["failed"]
    (failure,) = trained.events(events.Failure)
    assert (failure.kind, failure.step) == ("ZeroDivisionError", 2)
    assert trained.events(events.Finished) == []


def test_what_run_says_of_itself(begin: Begin) -> None:
    run = begin(project="p", name="n", seed=4, config={"lr": 0.1}).run
    assert (run.project, run.name, run.seed, run.rank, run.world) == ("p", "n", 4, 0, 1)
    assert run.config.lr == 0.1


def test_a_gradient_that_is_not_finite_stops_before_the_weights_are_touched(begin: Begin) -> None:
    trained = begin(on_nonfinite="stop", checkpoint={"every_steps": 1})
    trained.train(until=2)
    before = trained.model.weights.copy()
    loss = trained.model.loss(next(trained.run.batches(trained.data)))
    with pytest.raises(ScalarError) as caught:
        trained.run.step(ToyLoss(loss.value, loss.gradient * math.nan))
    assert caught.value.code == "nonfinite"
    assert "in step 3" in caught.value.what
    assert "weights.grad" in caught.value.what
    assert np.array_equal(trained.model.weights, before)
    (told,) = trained.events(events.Nonfinite)
    assert (told.step, told.what, told.name) == (3, "gradient", "weights.grad")
    assert max(saved.step for saved in list_checkpoints(trained.folder.checkpoints)) == 2
