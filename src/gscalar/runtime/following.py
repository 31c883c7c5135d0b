"""A run whose loop, backward and update are another trainer's: it is followed, and told when to save and to stop.

The trainer keeps its loop, its data, its optimizer and its own exchange of gradients. It says what it does (`mark`,
`inside`), when an optimizer step is over (`step`) and what it logs. After each step all ranks agree, by one small sum,
on what a step of our own loop agrees on too: how much was consumed, whether a checkpoint is due, whether to
stop. The trainer is told by a `Decision`, saves in its own format, and calls `save` and `stop` at its next border.

A checkpoint holds the trainer's files, the counters of `run.state`, and what each rank wants to find again:

    step-000000000100/   manifest.json, values.json, ranks/rank-00000, trainer/...

It is committed, verified and pruned as any other. Which one a trainer goes on from, `newest` says; that it did,
`begin` sees by the step it begins at. Limit: a loss that is not finite is seen when its step is over, so
`on_nonfinite: stop` ends the training with the weights moved, and the checkpoint before is the one to go back to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from gscalar.base.errors import TrainingError, UserError
from gscalar.model.events import Adopted, Nonfinite, Resumed
from gscalar.model.spans import CollectiveKind, SpanKind
from gscalar.observation.collectives import HOST_SUMS
from gscalar.observation.step_clock import OpenSpan
from gscalar.runtime.checkpointing import RANKS, Checkpointer
from gscalar.runtime.claims import Claim
from gscalar.runtime.finite import nonfinite_loss
from gscalar.runtime.framework import Group, Update
from gscalar.runtime.opening import declare
from gscalar.runtime.recording import Recording
from gscalar.runtime.saving import BEGINS_ANEW
from gscalar.runtime.stepping import Agreement, OwnPart, StepResult
from gscalar.runtime.worker import Worker
from gscalar.state.checkpoints import find_loadable, read_values

FILES: Final = "trainer"  # the trainer's own files in a checkpoint
_ONE_TRAINING: Final = "Give each training a job of its own: what gscalar run launches is one run."
_FINISH_BETWEEN: Final = (
    "Call run.finish() on the run of gscalar.init(...) between two trainings; callback() then opens a new one."
)
ELSEWHERE: Final = "elsewhere"  # where a trainer went on from that was not given one of our checkpoints


@dataclass(frozen=True, slots=True)
class Decision:
    """What all ranks agreed on after a step: whether the trainer saves now, and whether it then stops."""

    save: bool
    stop: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A verified checkpoint of the trainer that is followed. `ranks[rank]` is what that rank wanted to find again."""

    step: int
    path: Path
    run_state: dict[str, Any]
    ranks: list[bytes]

    @property
    def files(self) -> Path:
        """The folder with what the trainer wrote."""
        return self.path / FILES


class _Training:
    """What exists while a trainer is followed."""

    def __init__(self, followed: Any, group: Group, checkpointer: Checkpointer, total_steps: int) -> None:
        self.followed = followed
        self.group = group
        self.checkpointer = checkpointer
        self.total_steps = total_steps


class Follower:
    """Follows one training. `name` is the trainer's, and its checkpoints are no other trainer's."""

    def __init__(self, worker: Worker, name: str) -> None:
        self._worker = worker
        self.name = name
        self._training: _Training | None = None
        self.found: Found | None = None  # what the trainer was offered to go on from
        self.claim = Claim(worker.opened.folder.control / "trainer-writes")
        self._mark: OpenSpan | None = None
        worker.conclude = self._conclude
        worker.explain = self._explain

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._worker.opened.launch.rank

    @property
    def recording(self) -> Recording:
        """Where notes and signs of life go."""
        return self._worker.recording

    @property
    def step_done(self) -> int:
        """The last optimizer step that is recorded."""
        return self._worker.state.step

    def is_saved(self) -> bool:
        """Whether the last checkpoint taken is of the last step."""
        return self._followed().checkpointer.is_saved(self.step_done)

    def wants_last(self) -> bool:
        """Whether the end of the training has a checkpoint to take."""
        return self._followed().checkpointer.wanted_at_end and not self.is_saved()

    def newest(self) -> Found | None:
        """Return the newest checkpoint whose checksums hold; None on a fresh start.

        Every rank reads the folder by itself, before there is a group: nobody writes there until training begins.

        Raises:
            TrainingError: `state-mismatch`, when it holds another trainer's files.
        """
        loadable = find_loadable(self._worker.opened.folder.checkpoints)
        for bad, reason in loadable.damaged if self.rank == 0 else ():
            text = f"Checkpoint {bad.name} is damaged ({reason}) and was passed over."
            self.recording.note(text, "checkpoint-damaged")
        if loadable.found is None:
            return None
        path = loadable.found.path
        values = read_values(path)
        if values.get("follows") != self.name:
            raise TrainingError(
                code="state-mismatch",
                what=f"The run's newest checkpoint was written by {values.get('follows', 'a loop of run.batches')}, "
                f"and this script trains with {self.name}.",
                where=str(path),
                next_step="Resume with the script that wrote it, or start a new run.",
            )
        ranks = [file.read_bytes() for file in sorted((path / RANKS).iterdir())]
        self.found = Found(loadable.found.step, path, values["run"], ranks)
        return self.found

    def begin(
        self, followed: Any, *, step: int, world: int, total_steps: int, facts: Mapping[str, Any], settings: Any
    ) -> bool:
        """Begin to follow a training that stands at `step`; return whether it goes on from the checkpoint found.

        `followed` is what the framework's tools take for what is trained, with its `objects`. `facts` are for people,
        and `settings` are the trainer's own, recorded beside the config.

        Raises:
            UserError: `callback-twice`, `second-training`, `trainer-world`.
        """
        worker = self._worker
        self._check(step, world)
        worker.framework_for(followed.objects)
        worker.recording.beat("prepare", now=True)
        group = worker.connected()
        resumed = self._go_on(step)
        worker.recording.emit(Adopted(time.time_ns(), dict(facts)))
        declare(worker.opened, FILES, settings)
        if self._training is None:
            self._training = _Training(followed, group, worker.checkpointer(), total_steps)
        self._training.followed, self._training.total_steps = followed, total_steps
        worker.exits.take_back()
        worker.exits.in_loop = True
        worker.timing.start()
        self.mark(SpanKind.HOST)
        return resumed

    def mark(self, kind: SpanKind, value: int = 0) -> None:
        """Say what the trainer does from now until the next mark."""
        self.unmark()
        self._mark = self.open_span(kind, value)

    def unmark(self) -> None:
        """Say that nothing is known of what follows."""
        if self._mark is not None:
            self._worker.timing.clock.end(self._mark)
            self._mark = None

    def open_span(self, kind: SpanKind, value: int = 0) -> OpenSpan:
        """Say what the trainer does until `close_span`, whatever is marked around it."""
        return self._worker.timing.clock.begin(kind, value)

    def close_span(self, span: OpenSpan) -> None:
        """End what `open_span` began, and what was left open inside it."""
        self._worker.timing.clock.end(span)

    @contextmanager
    def inside(self, kind: SpanKind, value: int = 0) -> Iterator[None]:
        """Say what the trainer does in this block, whatever is marked around it."""
        span = self.open_span(kind, value)
        try:
            yield
        finally:
            self.close_span(span)

    def step(
        self,
        step: int,
        *,
        loss: Any,
        samples: float,
        tokens: float = 0.0,
        lr: float = math.nan,
        epoch: int = 0,
        is_last: bool = False,
    ) -> Decision:
        """Record an optimizer step that is done, and return what all ranks do now.

        `loss` is this rank's (a number or a tensor of one element; None where the trainer does not tell), `samples`
        and `tokens` are what this rank consumed, `epoch` counts from 0 and rises with an epoch's last step.
        `is_last` says that no step follows.

        Raises:
            TrainingError: `nonfinite`, where `on_nonfinite` is `stop`.
        """
        training, worker = self._followed(), self._worker
        value = worker.recording.scalar(loss) if loss is not None else None
        agreement = self._agree(training, step, samples, tokens, value)
        before, worker.state.step = worker.state.step, step
        result = StepResult(Update(lr, None), agreement, value, own=OwnPart(float(samples), float(tokens)))
        worker.step_over(result, epoch=epoch, total_steps=training.total_steps)
        worker.recording.beat("training")
        checkpointer = training.checkpointer
        due = agreement.checkpoint or agreement.stop or checkpointer.due_by_step(step, before)
        return Decision(due or (is_last and checkpointer.wanted_at_end), agreement.stop)

    def _agree(
        self, training: _Training, step: int, samples: float, tokens: float, loss: Callable[[], float] | None
    ) -> Agreement:
        worker = self._worker
        looks = worker.spec.on_nonfinite == "stop" and loss is not None
        nonfinite = looks and loss is not None and not math.isfinite(loss())
        due = worker.checkpoint_asked or (self.rank == 0 and training.checkpointer.due_by_time())
        wants = [samples, tokens, float(worker.exits.stop_requested), float(due), float(nonfinite)]
        ledger = worker.timing.ledger
        alone = worker.opened.launch.world == 1
        seen = None if alone else ledger.ready(CollectiveKind.ALL_REDUCE, HOST_SUMS, 8 * len(wants))
        if seen is None:
            totals = wants
        else:
            with self.inside(SpanKind.COMMUNICATION):
                totals = training.group.start_sum(wants)()
            seen.done()
        if totals[4]:
            self._refuse(training, step, nonfinite)
        return Agreement(totals[0], totals[1], totals[2] > 0, totals[3] > 0, totals[4] > 0)

    def _refuse(self, training: _Training, step: int, seen_here: bool) -> NoReturn:
        worker, world = self._worker, self._worker.opened.launch.world
        name = worker.tools.first_nonfinite(training.followed)
        if seen_here:
            worker.recording.emit(Nonfinite(time.time_ns(), step, self.rank, "loss", name))
        ranks = training.group.start_sum([float(seen_here and rank == self.rank) for rank in range(world)])()
        raise nonfinite_loss(step, [rank for rank, seen in enumerate(ranks) if seen], name)

    def save(self, write: Callable[[Path], None], rank_state: bytes = b"") -> None:
        """Take a checkpoint of the last step; every rank calls it at the same place.

        `write` is called on every rank with the folder for the trainer's files; when it returns, this rank's are
        there. Hashing and committing go on in the background.
        """
        training, worker, step = self._followed(), self._worker, self.step_done
        began_s = time.monotonic()
        worker.checkpoint_asked = False
        worker.recording.beat("checkpoint", now=True)
        with self.inside(SpanKind.CHECKPOINT, step):
            training.group.start_sum([0.0])()  # what the trainer has written itself is complete on all ranks
            draft, reason = self._begin_draft(training, step)
            if draft is not None:
                reason = _attempt(write, draft / FILES)
            blobs = training.group.gather(msgspec.msgpack.encode((rank_state, reason)))
            if self.rank > 0:
                training.checkpointer.skip(step)
                return
            told = [msgspec.msgpack.decode(blob) for blob in blobs]
            reasons = [text for _, text in told if text]
            if draft is None or reasons:
                own = reason or f"rank {next(rank for rank, (_, text) in enumerate(told) if text)}: {reasons[0]}"
                training.checkpointer.give_up(draft, step, own)
                return
            values = {"run": worker.state.to_plain(), "follows": self.name}
            training.checkpointer.commit(draft, step, values, [blob for blob, _ in told], began_s)

    def _begin_draft(self, training: _Training, step: int) -> tuple[Path | None, str]:
        """Return rank 0's folder on all ranks, or None and why there is none."""
        path, reason = "", ""
        if self.rank == 0:
            try:
                draft = training.checkpointer.begin(step)
                (draft / FILES).mkdir()
                path = str(draft)
            except OSError as error:
                reason = f"{type(error).__name__}: {error}"
        path = training.group.broadcast(path.encode()).decode()
        return (Path(path) if path else None), reason

    def stop(self) -> NoReturn:
        """Leave the training resumable, on all ranks together: SystemExit with 75, or 130 after Ctrl-C."""
        training = self._followed()
        self.unmark()
        training.checkpointer.wait()
        training.group.start_sum([0.0])()  # a launcher may kill the rest when one leaves
        self._worker.stop()

    def end(self) -> None:
        """Say that the trainer's loop is over. What is logged afterwards still belongs to the run."""
        training = self._followed()
        self.unmark()
        self._worker.exits.in_loop = False
        # Once the interpreter shuts down no thread pool takes work, and the writer needs one.
        training.checkpointer.wait()

    def _followed(self) -> _Training:
        assert self._training is not None, "begin comes first"
        return self._training

    def _check(self, step: int, world: int) -> None:
        launched = self._worker.opened.launch.world
        if world != launched:
            raise UserError(
                code="trainer-world",
                what=f"The trainer trains in a world of {world}, and {launched} workers were launched.",
                value=world,
                next_step="Let the trainer see the launch, for example pl.Trainer(devices=N) with the workers of this "
                "host, or launch as many as it uses.",
            )
        if self._worker.exits.in_loop:
            raise UserError(
                code="callback-twice",
                what=f"A {self.name} training that is going on was begun by a second callback.",
                next_step="Give the trainer one gscalar callback.",
            )
        if self._training is not None and step != self.step_done:
            raise UserError(
                code="second-training",
                what=f"The run has followed a training to step {self.step_done}, and another one begins at {step}.",
                next_step=_ONE_TRAINING if self._worker.opened.supervised else _FINISH_BETWEEN,
            )

    def _go_on(self, step: int) -> bool:
        """Count on from where the trainer stands; return whether that is the checkpoint that was found."""
        worker, found = self._worker, self.found
        if self._training is not None:
            return False
        if step == 0:
            if found is not None:
                text = "The trainer was not given the checkpoint that was found: this attempt begins anew."
            else:
                text = BEGINS_ANEW
            if self.rank == 0 and (worker.opened.attempt > 0 or found is not None):
                worker.recording.note(text, "begins-anew")
            return False
        ours = found is not None and found.step == step
        place = ELSEWHERE
        if found is not None and ours:
            worker.state.restore(found.run_state)
            place = f"{found.path.parent.name}/{found.path.name}"
        else:
            text = (
                f"The trainer went on from step {step} of a checkpoint that is not this run's newest: counts of "
                "samples and tokens begin at 0, and nothing was verified. last_checkpoint() gives the run's own."
            )
            worker.recording.note(text, "resumed-elsewhere")
        worker.state.step = step
        worker.recording.emit(Resumed(time.time_ns(), step, place))
        return ours

    def _explain(self, error: BaseException) -> None:
        """Say what to do where the trainer could not take the checkpoint that it was given."""
        text = str(error)
        if self._training is None and self.found is not None and ("size mismatch" in text or "state_dict" in text):
            self.recording.note(
                f"The checkpoint of step {self.found.step} does not fit this script's model or optimizer: resume "
                "with the script that wrote it, or start a new run.",
                "state-mismatch",
            )

    def _conclude(self) -> dict[str, str]:
        """Say what was forgotten, and return the digest of the weights."""
        worker, training = self._worker, self._training
        if training is None or worker.state.step == 0:
            worker.recording.note(f"No step of a {self.name} trainer was seen: nothing was trained.", "no-step")
        if training is None or self.rank > 0:
            return {}
        return {"weights": worker.tools.weights_digest(training.followed)}


def _attempt(write: Callable[[Path], None], path: Path) -> str:
    """Return why the trainer could not write, or nothing."""
    try:
        write(path)
    except Exception as error:  # noqa: BLE001 - a full disk must not end the training, whatever a trainer makes of it
        return f"{type(error).__name__}: {error}"
    return ""
