"""Lightning's Trainer with our callback: recorded, stopped, killed and resumed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gscalar
from gscalar.model import events
from gscalar.model.accounts import unpack_accounts
from gscalar.model.spans import SpanKind, unpack_spans
from gscalar.state.checkpoints import list_checkpoints
from gscalar.state.home import Home

pytestmark = [
    pytest.mark.torch,
    pytest.mark.lightning,
    # What Lightning and torch warn of among themselves.
    pytest.mark.filterwarnings("ignore"),
]
SCRIPT = "lightning_train"
Begin = Callable[..., Any]


@pytest.fixture(scope="module")
def undisturbed() -> dict[tuple[str, ...], str]:
    """The digests of undisturbed trainings, by the words that they were trained with."""
    return {}


def digest_of(attempts: Begin, known: dict[tuple[str, ...], str], *words: str) -> str:
    if words not in known:
        calm = attempts(SCRIPT, "calm")
        calm.train(*words)
        known[words] = calm.weights(0)
    return known[words]


def test_every_step_is_recorded_with_the_losses_of_the_module(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    trainer = run.train("accumulate_grad_batches=2")
    steps, seen = run.events(events.Step), trainer.lightning_module.losses
    # Seven batches an epoch, two a step; the last batch is a step of its own, of half its loss as Lightning has it.
    batches = [(0, 1), (2, 3), (4, 5), (6,), (7, 8), (9, 10), (11, 12), (13,)]
    assert [step.step for step in steps] == list(range(1, trainer.global_step + 1)) == list(range(1, 9))
    assert [step.loss for step in steps] == pytest.approx([sum(seen[i] for i in step) / 2 for step in batches])
    assert [step.samples for step in steps] == [8, 8, 8, 2] * 2
    assert [step.epoch for step in steps] == [0, 0, 0, 1, 1, 1, 1, 2]
    # LinearLR from 0.02 to 0.002 over 14 steps: the rate of a step is that before the schedule moves.
    assert [step.lr for step in steps] == pytest.approx([0.02 * (1 - 0.9 * step / 14) for step in range(8)])
    assert {step.total_steps for step in steps} == {8}


def test_what_the_module_logs_is_recorded_at_the_step_that_is_done(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    trainer = run.train()
    assert run.logged("train_loss") == [
        (step, pytest.approx(loss)) for step, loss in enumerate(trainer.lightning_module.losses, 1)
    ]
    assert [step for step, _ in run.logged("val_loss")] == [7, 14]
    assert trainer.loggers == []
    assert "start" not in vars(trainer.profiler)


def test_a_steps_accounts_sum_to_it_and_spans_say_what_the_trainer_did(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    run.train()
    for step in run.events(events.Step):
        accounts = unpack_accounts(step.accounts)
        assert sum(accounts.values()) == pytest.approx(step.duration_s)
        assert min(accounts[name] for name in ("compute", "optimizer", "data_wait", "h2d", "host_gap")) > 0
    kinds = {SpanKind(span.kind) for event in run.events(events.Spans) for span in unpack_spans(event.rows)}
    assert kinds >= {SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.CHECKPOINT, SpanKind.EVALUATION}


def test_hyperparameters_and_settings_are_recorded_beside_the_config(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    run.train("max_steps=1", every_steps=None)
    config = run.events(events.WorkerStarted)[-1].spec["config"]["trainer"]
    assert config["hparams"] == {"width": 8}
    assert (config["max_steps"], config["max_epochs"], config["precision"]) == (1, 2, "32-true")


VALIDATING = ("val_check_interval=2",)
RESUMES: dict[str, tuple[int, int, int, tuple[str, ...]]] = {
    # fails before the step, checkpoints every so many, goes on from, with
    "in the first epoch": (5, 3, 3, ()),
    "before an epoch's last step": (7, 3, 6, ()),
    "at the border of epochs": (9, 7, 7, ()),
    "in the second epoch": (12, 10, 10, ()),
    "before the last step": (14, 3, 12, ()),
    "after a validation in the middle": (6, 2, 4, VALIDATING),
    "without a sanity check, at the border": (9, 7, 7, ("num_sanity_val_steps=0",)),
}


@pytest.mark.parametrize("case", RESUMES)
def test_a_training_that_fails_and_resumes_ends_with_the_weights_of_an_undisturbed_one(
    case: str, attempts: Begin, undisturbed: dict[tuple[str, ...], str]
) -> None:
    step, every, start, words = RESUMES[case]
    want = digest_of(attempts, undisturbed, *words)
    run = attempts(SCRIPT)
    with pytest.raises(RuntimeError, match="as the test asked"):
        run.train(f"fail_at={step}", *words, every_steps=every)
    run.train(*words, every_steps=every)
    assert [each.step for each in run.events(events.Resumed, 1)] == [start]
    assert [each.step for each in run.events(events.Step, 1)] == list(range(start + 1, 15))
    (finished,) = run.events(events.Finished, 1)
    assert finished.samples == 52
    assert run.weights(1) == want


@pytest.mark.parametrize("step", [5, 7])
def test_sigterm_saves_at_the_step_and_exits_resumable(
    step: int, attempts: Begin, undisturbed: dict[tuple[str, ...], str]
) -> None:
    want = digest_of(attempts, undisturbed)
    run = attempts(SCRIPT)
    with pytest.raises(SystemExit) as caught:
        run.train(f"stop_at={step}")
    assert caught.value.code == 75
    assert [each.step for each in run.events(events.StopAcknowledged)] == [step]
    run.train()
    assert [each.step for each in run.events(events.Resumed, 1)] == [step]
    assert run.weights(1) == want


def test_a_training_that_is_done_goes_on_to_nothing(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    run.train()
    run.train()
    assert run.events(events.Step, 1) == []
    assert run.weights(1) == run.weights(0)


def test_the_last_step_is_saved_and_old_checkpoints_are_pruned(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    run.train()
    assert [each.step for each in run.events(events.CheckpointSaved)] == [3, 6, 9, 12, 14]
    assert [each.step for each in list_checkpoints(run.folder.checkpoints)] == [14, 12]


def test_a_loss_that_is_not_finite_ends_the_training_where_that_is_asked(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    with pytest.raises(gscalar.TrainingError, match="step 4") as caught:
        run.train("bad_at=4", on_nonfinite="stop")
    assert caught.value.code == "nonfinite"
    assert [(each.step, each.what) for each in run.events(events.Nonfinite)] == [(4, "loss")]


def test_a_checkpoint_of_another_model_fails_with_the_trainers_words_and_a_note_says_what_to_do(
    attempts: Begin,
) -> None:
    run = attempts(SCRIPT)
    with pytest.raises(RuntimeError):
        run.train("fail_at=5")
    with pytest.raises(RuntimeError, match="size mismatch"):
        run.train("width=16")
    assert run.notes(1) == ["state-mismatch"]


def test_a_second_training_in_one_run_is_refused(attempts: Begin) -> None:
    import pytorch_lightning as pl

    attempts(SCRIPT)
    script = __import__(SCRIPT)
    loader = script.DataLoader(script.data(8), batch_size=4)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    with gscalar.init() as run:
        callback = gscalar.lightning.callback()
        pl.Trainer(max_epochs=1, callbacks=[callback], **options).fit(script.Net(), loader)
        with pytest.raises(gscalar.UserError, match="followed a training to step 2") as caught:
            pl.Trainer(max_epochs=1, callbacks=[callback], **options).fit(script.Net(), loader)
    assert caught.value.code == "second-training"
    assert run.closed


def test_after_an_exception_that_the_script_catches_the_trainer_is_as_it_was(attempts: Begin) -> None:
    import pytorch_lightning as pl

    class Fails(pl.Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            raise ZeroDivisionError

    attempts(SCRIPT)
    script = __import__(SCRIPT)
    loader = script.DataLoader(script.data(8), batch_size=4)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    with gscalar.init():
        trainer = pl.Trainer(max_epochs=1, callbacks=[gscalar.lightning.callback(), Fails()], **options)
        with pytest.raises(ZeroDivisionError):
            trainer.fit(script.Net(), loader)
        assert (trainer.loggers, vars(trainer.profiler).get("start")) == ([], None)
        with pytest.raises(SystemExit) as caught:  # no loop is there any more to wait for a border
            signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM


def test_a_trainer_that_does_not_see_the_launch_is_told(
    attempts: Begin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run = attempts(SCRIPT)
    with pytest.raises(gscalar.UserError, match="world of 1, and 2 workers") as caught:
        run.train()
    assert caught.value.code == "trainer-world"


@pytest.mark.slow
def test_a_checkpoint_that_rank_0_cannot_write_leaves_no_worker_waiting(two_workers: Any, home: Path) -> None:
    folder = two_workers(SCRIPT, "full_at=3", "devices=2")
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    assert ranks[0][0] == 8
    told = (folder / "told.txt").read_text()
    assert "No space left on device" in told
    assert "2 attempts" not in told
    (run,) = (home / "runs").iterdir()
    assert [each.step for each in list_checkpoints(Home(home).run(run.name).checkpoints)] == [8, 6]


@pytest.mark.slow
def test_two_workers_make_one_record_and_equal_weights_through_a_kill(two_workers: Any, home: Path) -> None:
    folder = two_workers(SCRIPT, "die_at=6", "devices=2")
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    assert ranks[0][0] == 8
    assert len(list((home / "runs").iterdir())) == 1
    assert "2 attempts" in (folder / "told.txt").read_text()
