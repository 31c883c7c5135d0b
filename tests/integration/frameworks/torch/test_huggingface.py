"""The Hugging Face Trainer with our callback: recorded, stopped, killed and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gscalar
from gscalar.model import events
from gscalar.model.accounts import unpack_accounts
from gscalar.state.checkpoints import list_checkpoints
from gscalar.state.home import Home

pytestmark = [
    pytest.mark.torch,
    pytest.mark.huggingface,
    # What transformers, accelerate and torch warn of among themselves.
    pytest.mark.filterwarnings("ignore"),
]
SCRIPT = "huggingface_train"
Begin = Callable[..., Any]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], str]:
    """The digests of undisturbed trainings, by the words that they were trained with."""
    return {}


def digest_of(attempts: Begin, known: dict[tuple[str, ...], str], *words: str) -> str:
    if words not in known:
        calm = attempts(SCRIPT, "calm")
        calm.train(*words)
        known[words] = calm.weights(0)
    return known[words]


def test_every_step_is_recorded_with_the_losses_that_the_trainer_logs(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    trainer = run.train("gradient_accumulation_steps=2")
    steps = run.events(events.Step)
    told = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [step.step for step in steps] == list(range(1, trainer.state.global_step + 1)) == list(range(1, 9))
    assert [step.loss for step in steps] == pytest.approx([entry["loss"] for entry in told], rel=1e-6)
    assert [step.lr for step in steps] == pytest.approx([entry["learning_rate"] for entry in told])
    # 26 samples of 12 tokens in batches of 4, two a step: three full steps and one of two samples.
    assert [step.samples for step in steps] == [8, 8, 8, 2] * 2
    assert [step.tokens for step in steps] == [96, 96, 96, 24] * 2
    assert [step.epoch for step in steps] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert {step.total_steps for step in steps} == {8}
    assert run.logged("loss") == [(entry["step"], entry["loss"]) for entry in told]
    assert run.logged("train/grad_norm") == [(entry["step"], entry["grad_norm"]) for entry in told]


def test_a_steps_accounts_sum_to_it_and_evaluation_is_in_none(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    run.train('eval_strategy="steps"', "eval_steps=7")
    for step in run.events(events.Step):
        accounts = unpack_accounts(step.accounts)
        assert sum(accounts.values()) == pytest.approx(step.duration_s)
        assert accounts["compute"] > 0
        assert accounts["optimizer"] > 0
        assert accounts["data_wait"] > 0
    assert [step for step, _ in run.logged("eval_loss")] == [7, 14]


def test_the_trainers_settings_are_recorded_beside_the_scripts_config(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    run.train(every_steps=None, config={"trainer": {"note": "mine"}, "depth": 2})
    config = run.events(events.WorkerStarted)[-1].spec["config"]
    assert config["depth"] == 2
    assert config["trainer"]["note"] == "mine"
    assert config["trainer"]["learning_rate"] == 1e-2
    assert "output_dir" not in config["trainer"]


@pytest.mark.parametrize("step", [5, 8, 9, 14])
def test_a_training_that_fails_and_resumes_ends_with_the_weights_of_an_undisturbed_one(
    step: int, attempts: Begin, undisturbed: dict[tuple[str, ...], str]
) -> None:
    want = digest_of(attempts, undisturbed)
    run = attempts(SCRIPT)
    with pytest.raises(RuntimeError, match="as the test asked"):
        run.train(f"fail_at={step}")
    run.train()
    (resumed,) = run.events(events.Resumed, 1)
    assert resumed.step == (step - 1) // 3 * 3
    assert [each.step for each in run.events(events.Step, 1)] == list(range(resumed.step + 1, 15))
    (finished,) = run.events(events.Finished, 1)
    assert (finished.samples, finished.tokens) == (52, 624)
    assert run.weights(1) == want


def test_sigterm_saves_at_the_step_and_exits_resumable(
    attempts: Begin, undisturbed: dict[tuple[str, ...], str]
) -> None:
    want = digest_of(attempts, undisturbed)
    run = attempts(SCRIPT)
    with pytest.raises(SystemExit) as caught:
        run.train("stop_at=5")
    assert caught.value.code == 75
    assert [each.step for each in run.events(events.StopAcknowledged)] == [5]
    run.train()
    assert [each.step for each in run.events(events.Resumed, 1)] == [5]
    assert run.weights(1) == want


def test_what_only_the_run_asked_for_is_moved_and_what_the_trainer_saves_is_linked(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    run.train('save_strategy="steps"', "save_steps=4", "save_total_limit=2")
    own = sorted(path.name for path in (run.output / "out").iterdir())
    assert own == ["checkpoint-12", "checkpoint-14"]
    saved = {each.step: each.path for each in list_checkpoints(run.folder.checkpoints)}
    assert sorted(saved) == [12, 14]
    theirs = run.output / "out" / "checkpoint-12" / "model.safetensors"
    assert theirs.samefile(saved[12] / "trainer" / "model.safetensors")
    assert [each.step for each in run.events(events.CheckpointSaved)] == [3, 4, 6, 8, 9, 12, 14]


def test_what_only_the_run_asked_for_costs_the_trainer_none_of_its_own(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    limited = ('save_strategy="steps"', "save_steps=4", "save_total_limit=1")
    with pytest.raises(RuntimeError, match="as the test asked"):
        run.train(*limited, "fail_at=8")  # after the run's own of step 6
    assert [path.name for path in (run.output / "out").iterdir()] == ["checkpoint-4"]
    trainer = run.train(*limited)
    assert [path.name for path in (run.output / "out").iterdir()] == ["checkpoint-14"]
    assert trainer.args.save_total_limit == 1


def disturb_saves(monkeypatch: pytest.MonkeyPatch, *errors: BaseException) -> None:
    """Let the first saves of the Trainer fail amid their files."""
    import transformers

    write, left = transformers.Trainer._save_optimizer_and_scheduler, list(errors)

    def disturbed(self: Any, folder: str) -> None:
        if left:
            raise left.pop(0)
        write(self, folder)

    monkeypatch.setattr(transformers.Trainer, "_save_optimizer_and_scheduler", disturbed)


def test_a_checkpoint_that_only_the_run_asked_for_may_fail(attempts: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    disturb_saves(monkeypatch, OSError(28, "No space left on device"))
    run = attempts(SCRIPT)
    run.train()
    (failed,) = run.events(events.CheckpointFailed)
    assert failed.step == 3
    assert "No space left on device" in failed.reason
    assert [each.step for each in run.events(events.CheckpointSaved)] == [6, 9, 12, 14]
    assert list((run.output / "out").glob("checkpoint-*")) == []


def test_a_checkpoint_that_the_trainer_wanted_fails_as_without_a_run(
    attempts: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb_saves(monkeypatch, OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        attempts(SCRIPT).train('save_strategy="steps"', "save_steps=3")


def test_what_was_not_finished_for_the_run_is_removed_by_the_next_attempt(
    attempts: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb_saves(monkeypatch, SystemExit(1))
    run = attempts(SCRIPT)
    with pytest.raises(SystemExit):
        run.train()
    (left,) = (run.output / "out").glob("checkpoint-*")
    kept = run.output / "out" / "checkpoint-2"  # the user's own
    kept.mkdir()
    run.train()
    assert not left.exists()
    assert kept.exists()


def test_a_checkpoint_that_the_trainer_writes_again_leaves_the_runs_own_alone(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    with pytest.raises(RuntimeError):
        run.train('save_strategy="steps"', "save_steps=3", "fail_at=8")
    six = run.folder.checkpoints / "step-000000000006" / "trainer" / "model.safetensors"
    bytes_before = six.read_bytes()
    # The newest is gone: the trainer goes on from step 3, and writes its checkpoint-6 a second time.
    (run.folder.checkpoints / "step-000000000006" / "state.json").write_text("damaged")
    run.train('save_strategy="steps"', "save_steps=3", "max_steps=5")
    assert [each.step for each in run.events(events.Resumed, 1)] == [3]
    assert not six.samefile(run.output / "out" / "checkpoint-6" / "model.safetensors")
    assert six.read_bytes() == bytes_before
    assert "checkpoint-damaged" in run.notes(1)


def test_a_loss_that_is_not_finite_ends_the_training_where_that_is_asked(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    with pytest.raises(gscalar.TrainingError, match=r"step 4.*\n|step 4") as caught:
        run.train("bad_at=4", on_nonfinite="stop")
    assert caught.value.code == "nonfinite"
    assert [(each.step, each.what) for each in run.events(events.Nonfinite)] == [(4, "loss")]


def test_a_resume_that_is_not_asked_for_and_one_from_elsewhere_are_noted(
    attempts: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = attempts(SCRIPT)
    with pytest.raises(RuntimeError):
        run.train("fail_at=5", 'save_strategy="steps"', "save_steps=3")
    monkeypatch.setattr(gscalar.huggingface, "last_checkpoint", lambda: None)
    run.train("max_steps=1")
    assert run.notes(1) == ["begins-anew"]
    foreign = str(run.output / "out" / "checkpoint-3")
    monkeypatch.setattr(gscalar.huggingface, "last_checkpoint", lambda: foreign)
    run.train("max_steps=4")
    assert run.notes(2) == ["resumed-elsewhere"]


def test_a_checkpoint_of_another_model_fails_with_the_trainers_words_and_a_note_says_what_to_do(
    attempts: Begin,
) -> None:
    run = attempts(SCRIPT)
    with pytest.raises(RuntimeError):
        run.train("fail_at=5")
    with pytest.raises(RuntimeError, match=r"size mismatch|mismatched"):
        run.train("width=32")
    assert run.notes(1) == ["state-mismatch"]


def test_a_training_that_is_done_goes_on_to_nothing(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    run.train()
    run.train()
    assert run.events(events.Step, 1) == []
    assert run.weights(1) == run.weights(0)


def test_another_trainers_checkpoint_is_refused(attempts: Begin) -> None:
    run = attempts(SCRIPT)
    with pytest.raises(RuntimeError):
        run.train("fail_at=5")
    with gscalar.init() as opened, pytest.raises(gscalar.TrainingError, match="written by transformers") as caught:
        gscalar.lightning.last_checkpoint(opened)
    assert caught.value.code == "state-mismatch"


def test_a_second_callback_is_refused(attempts: Begin) -> None:
    import transformers

    run = attempts(SCRIPT)
    script = __import__("huggingface_train")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_embd=8, n_layer=1, n_head=1))
    args = transformers.TrainingArguments(
        output_dir=str(run.output), use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
    )
    with gscalar.init() as opened:
        twice = [gscalar.huggingface.callback(), gscalar.huggingface.callback(opened)]
        trainer = transformers.Trainer(model=model, args=args, train_dataset=script.Tokens(4), callbacks=twice)
        with pytest.raises(gscalar.UserError, match="second callback") as caught:
            trainer.train()
    assert caught.value.code == "callback-twice"


@pytest.mark.slow
def test_two_workers_make_one_record_and_equal_weights(two_workers: Any, home: Path) -> None:
    folder = two_workers(SCRIPT)
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    assert ranks[0][0] == 8  # 26 samples over two ranks in batches of 4, padded: four steps an epoch
    (name,) = [path.name for path in (home / "runs").iterdir()]
    records = sorted(path.name for path in Home(home).run(name).records.iterdir() if "-r" in path.name)
    assert records == [f"a000-r{rank:05d}.rec" for rank in range(2)]
