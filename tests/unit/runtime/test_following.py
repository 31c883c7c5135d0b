"""Another trainer's training, followed: what is recorded, agreed on, saved and found again."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gscalar.base.errors import ScalarError
from gscalar.model import events
from gscalar.model.accounts import unpack_accounts
from gscalar.model.spans import SpanKind, unpack_spans
from gscalar.runtime.following import FILES, Decision, Follower
from gscalar.runtime.session import Run, current_run, follow
from gscalar.state.checkpoints import list_checkpoints
from gscalar.state.home import Home
from gscalar.state.records import Frame, read_record
from gscalar.testing.toy import ToyData, ToyModel, ToySGD, open_toy_run


class Followed:
    """What the toy's tools take for what is trained."""

    def __init__(self) -> None:
        self.model = ToyModel(1)
        self.objects = (self.model,)


class Trainer:
    """A trainer with a loop of its own: its weights are the number of its steps."""

    def __init__(self, run: Run, home: Path, name: str = "toys") -> None:
        self.run, self.followed, self.step = run, Followed(), 0
        self.folder = Home(home).run(run.id)
        self.follower: Follower = follow(run, name)

    def begin(self, step: int = 0, world: int = 1, total_steps: int = 0) -> bool:
        self.step = step
        return self.follower.begin(
            self.followed,
            step=step,
            world=world,
            total_steps=total_steps,
            facts={"device": "toy"},
            settings={"lr": 0.5},
        )

    def advance(self, loss: float | None = 1.0, **told: Any) -> Decision:
        self.step += 1
        self.followed.model.weights[:] = self.step
        return self.follower.step(self.step, loss=loss, samples=4, tokens=40, lr=0.5, **told)

    def save(self) -> None:
        self.follower.save(lambda files: (files / "weights").write_text(str(self.step)), b"own")

    def train(self, steps: int) -> list[int]:
        """Do what the decisions say; return the steps that were saved."""
        saved = []
        for _ in range(steps):
            decision = self.advance()
            if decision.save:
                self.save()
                saved.append(self.step)
            if decision.stop:
                self.follower.stop()
        return saved

    def events(self, kind: type[events.Event], attempt: int = 0) -> list[Any]:
        path = self.folder.worker_record(attempt, 0)
        told = [item.event for item in read_record(path) if isinstance(item, Frame)]
        return [event for event in told if isinstance(event, kind)]

    def notes(self, attempt: int = 0) -> list[str]:
        return [note.code for note in self.events(events.Note, attempt)]


Begin = Callable[..., Trainer]


@pytest.fixture
def begin(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Open a run in this process for a trainer; what is still open is finished after the test."""
    runs: list[Run] = []
    monkeypatch.setenv("GSCALAR_RUN_ID", "run")

    def call(name: str = "toys", **arguments: Any) -> Trainer:
        runs.append(open_toy_run(**{"checkpoint": {"every_s": None}, **arguments}))
        return Trainer(runs[-1], home, name)

    yield call
    for run in reversed(runs):
        run.finish()


def test_a_step_is_recorded_with_what_the_trainer_tells(begin: Begin) -> None:
    trainer = begin()
    trainer.begin(total_steps=9)
    trainer.advance(loss=2.5, epoch=1)
    (step,) = trainer.events(events.Step)
    assert (step.step, step.loss, step.lr, step.samples, step.tokens) == (1, 2.5, 0.5, 4, 40)
    assert (step.own_samples, step.own_tokens) == (4, 40)
    assert math.isnan(step.own_weight)  # how a trainer weighs its micro-batches it does not tell
    assert (step.epoch, step.total_steps) == (1, 9)
    assert (trainer.run.state.step, trainer.run.state.samples, trainer.run.state.tokens) == (1, 4, 40)


def test_a_loss_that_is_not_told_is_no_loss_that_is_not_finite(begin: Begin) -> None:
    trainer = begin(on_nonfinite="stop")
    trainer.begin()
    trainer.advance(loss=None)
    assert math.isnan(trainer.events(events.Step)[0].loss)
    assert trainer.events(events.Nonfinite) == []


def test_marks_and_what_is_inside_them_are_the_accounts_of_the_step(begin: Begin) -> None:
    trainer = begin()
    trainer.begin()
    trainer.follower.mark(SpanKind.DATA_WAIT, 3)
    trainer.follower.mark(SpanKind.FORWARD)
    with trainer.follower.inside(SpanKind.OPTIMIZER):
        pass
    trainer.follower.mark(SpanKind.EVALUATION)
    trainer.follower.unmark()
    trainer.advance()
    (step,), (spans,) = trainer.events(events.Step), trainer.events(events.Spans)
    accounts = unpack_accounts(step.accounts)
    assert sum(accounts.values()) == pytest.approx(step.duration_s)
    assert {name for name, seconds in accounts.items() if seconds} >= {"data_wait", "compute", "optimizer"}
    kinds = [SpanKind(span.kind) for span in unpack_spans(spans.rows)]
    assert [kind for kind in kinds if kind not in (SpanKind.HOST, SpanKind.GC)] == [
        SpanKind.DATA_WAIT, SpanKind.OPTIMIZER, SpanKind.FORWARD, SpanKind.EVALUATION,
    ]  # fmt: skip


DUE: dict[str, tuple[dict[str, Any], dict[str, Any], Decision]] = {
    # the policy, what is told with the third step, the decision
    "by the number of the step": ({"every_steps": 3, "every_s": None}, {}, Decision(True, False)),
    "not at this step": ({"every_steps": 2, "every_s": None}, {}, Decision(False, False)),
    "by the clock": ({"every_s": 1e-6}, {}, Decision(True, False)),
    "at the last step": ({"every_steps": 2, "every_s": None}, {"is_last": True}, Decision(True, False)),
    "not at the last step without a policy": ({"every_s": None}, {"is_last": True}, Decision(False, False)),
}


@pytest.mark.parametrize("case", DUE)
def test_a_checkpoint_is_due(case: str, begin: Begin) -> None:
    policy, told, want = DUE[case]
    trainer = begin(checkpoint=policy)
    trainer.begin()
    trainer.advance()
    trainer.advance()
    assert trainer.advance(**told) == want


def test_a_checkpoint_that_the_script_asks_for_is_due_once(begin: Begin) -> None:
    trainer = begin()
    trainer.begin()
    trainer.run.checkpoint()
    assert trainer.advance() == Decision(True, False)
    trainer.save()
    assert trainer.advance() == Decision(False, False)


def test_sigterm_is_a_stop_with_a_checkpoint_and_exits_resumable(begin: Begin) -> None:
    trainer = begin()
    trainer.begin()
    trainer.train(2)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        trainer.train(5)
    assert caught.value.code == 75
    assert [stop.step for stop in trainer.events(events.StopAcknowledged)] == [3]
    assert [saved.step for saved in list_checkpoints(trainer.folder.checkpoints)] == [3]
    assert current_run() is None


def test_a_trainers_own_handler_of_sigterm_is_put_aside(begin: Begin) -> None:
    trainer = begin()
    signal.signal(signal.SIGTERM, lambda signum, frame: pytest.fail("the trainer's handler was asked"))
    trainer.begin()
    signal.raise_signal(signal.SIGTERM)
    assert trainer.advance() == Decision(True, True)


def test_a_training_goes_on_from_the_newest_checkpoint_that_verifies(begin: Begin) -> None:
    first = begin(checkpoint={"every_steps": 2, "every_s": None})
    first.begin()
    assert first.train(5) == [2, 4]
    first.run.finish()
    newest = next(iter(list_checkpoints(first.folder.checkpoints)))
    (newest.path / FILES / "weights").write_text("9")
    second = begin(checkpoint={"every_steps": 2, "every_s": None})
    found = second.follower.newest()
    assert found is not None
    assert (found.step, (found.files / "weights").read_text(), found.ranks) == (2, "2", [b"own"])
    assert second.begin(step=2)
    assert (second.run.state.samples, second.run.state.tokens) == (8, 80)
    assert second.train(2) == [4]
    (resumed,) = second.events(events.Resumed, 1)
    assert (resumed.step, resumed.path) == (2, "checkpoints/step-000000000002")
    assert second.notes(1) == ["checkpoint-damaged"]


BEGINNINGS = {
    "anew, though there is a checkpoint": (0, ["begins-anew"], []),
    "from another step than that of the checkpoint": (5, ["resumed-elsewhere"], [(5, "elsewhere")]),
}


@pytest.mark.parametrize("case", BEGINNINGS)
def test_a_trainer_that_goes_its_own_way_is_noted(case: str, begin: Begin) -> None:
    step, notes, resumed = BEGINNINGS[case]
    first = begin()
    first.begin()
    first.advance()
    first.save()
    first.run.finish()
    second = begin()
    assert second.follower.newest() is not None
    assert not second.begin(step=step)
    second.advance()
    assert second.notes(1) == notes
    assert [(each.step, each.path) for each in second.events(events.Resumed, 1)] == resumed


def test_without_a_checkpoint_there_is_none(begin: Begin) -> None:
    assert begin().follower.newest() is None


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before_and_the_training_goes_on(begin: Begin) -> None:
    trainer = begin()
    trainer.begin()
    trainer.train(1)
    trainer.save()

    def full(files: Path) -> None:
        (files / "half").write_text("half")
        raise RuntimeError("no space left")

    trainer.train(1)
    trainer.follower.save(full)
    trainer.follower.end()
    (failed,) = trainer.events(events.CheckpointFailed)
    assert (failed.step, failed.reason) == (2, "RuntimeError: no space left")
    assert [saved.step for saved in list_checkpoints(trainer.folder.checkpoints)] == [1]
    assert [path.name for path in trainer.folder.checkpoints.iterdir() if path.name.startswith(".draft")] == []


def test_the_run_ends_with_the_digest_of_the_weights(begin: Begin) -> None:
    trainer = begin()
    trainer.begin()
    trainer.train(3)
    trainer.follower.end()
    trainer.run.log({"after": 1.0})
    trainer.run.finish()
    (finished,) = trainer.events(events.Finished)
    assert (finished.step, finished.samples, list(finished.digests)) == (3, 12, ["weights"])


def test_a_callback_whose_trainer_never_trained_is_noted(begin: Begin) -> None:
    trainer = begin()
    trainer.run.finish()
    assert trainer.notes() == ["no-step"]


def test_settings_lie_beside_the_config_and_no_secret_among_them(begin: Begin) -> None:
    trainer = begin(config={"depth": 2})
    trainer.follower.begin(
        trainer.followed, step=0, world=1, total_steps=0, facts={}, settings={"lr": 0.5, "api_key": "abc"}
    )
    started = trainer.events(events.WorkerStarted)[-1]
    assert started.spec["config"] == {"depth": 2, "trainer": {"lr": 0.5, "api_key": "[redacted]"}}
    assert started.origins["config.trainer.lr"] == "script"


def twice(trainer: Trainer) -> None:
    trainer.begin()
    trainer.begin()


def another(trainer: Trainer) -> None:
    trainer.begin()
    trainer.train(2)
    trainer.follower.end()
    trainer.begin(step=0)


def prepared(trainer: Trainer) -> None:
    model = ToyModel(3)
    trainer.run.prepare(model, ToySGD(model), ToyData.make(8))


def finished(trainer: Trainer) -> None:
    trainer.run.finish()
    follow(trainer.run, "toys")


REFUSED: dict[str, tuple[str, Callable[[Trainer], object]]] = {
    "two callbacks in one training": ("callback-twice", twice),
    "a second training in one run": ("second-training", another),
    "a trainer that does not see the launch": ("trainer-world", lambda trainer: trainer.begin(world=2)),
    "a second trainer": ("prepare-twice", lambda trainer: follow(trainer.run, "others")),
    "a loop of the script's own": ("prepare-twice", prepared),
    "a run that is over": ("run-completed", finished),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_followed_is_refused(case: str, begin: Begin) -> None:
    code, act = REFUSED[case]
    with pytest.raises(ScalarError) as caught:
        act(begin())
    assert caught.value.code == code
    assert caught.value.next_step


def test_a_training_that_goes_on_where_it_ended_is_the_same_one(begin: Begin) -> None:
    trainer = begin()
    trainer.begin()
    trainer.train(2)
    trainer.follower.end()
    trainer.begin(step=2)
    trainer.train(1)
    assert [step.step for step in trainer.events(events.Step)] == [1, 2, 3]


@pytest.mark.parametrize("first", ["toys", "own loop"])
def test_a_checkpoint_of_another_trainer_is_refused(first: str, begin: Begin) -> None:
    trainer = begin()
    if first == "toys":
        trainer.begin()
        trainer.train(1)
        trainer.save()
        trainer.run.finish()
        with pytest.raises(ScalarError, match="written by toys") as caught:
            begin("others").follower.newest()
        assert caught.value.code == "state-mismatch"
        with pytest.raises(ScalarError, match="files of a toys trainer") as caught:
            prepared_anew(begin)
    else:
        prepared_anew(begin)
        with pytest.raises(ScalarError, match=r"a loop of run\.batches") as caught:
            begin().follower.newest()
    assert caught.value.code == "state-mismatch"


def prepared_anew(begin: Begin) -> None:
    """Train one step by a loop of the script's own, in a run that nothing follows, and save it."""
    run = open_toy_run(checkpoint={"every_steps": 1, "every_s": None})
    try:
        model, data = ToyModel(3), ToyData.make(8)
        run.prepare(model, ToySGD(model), data)
        for batch in run.batches(data, steps=1):
            run.step(model.loss(batch))
    finally:
        run.finish()


def test_current_run_is_the_open_one(begin: Begin) -> None:
    trainer = begin()
    assert current_run() is trainer.run
    trainer.run.finish()
    assert current_run() is None
