"""The Hugging Face Trainer, followed by one callback.

    on_step_begin       the batches of the step are there: forward and backward begin
    on_pre_optimizer    clipped; the optimizer moves
    on_step_end         the step is over: recorded, agreed on; then what the Trainer's control says comes
    on_log, on_evaluate, on_save      in this order, each where it is due; else the wait for data begins

What lies between two calls is booked by what must come next. So the loggers that run after this callback count
as waiting for data, and forward and backward are one span.

A checkpoint is what the Trainer writes into its `output_dir`, by its own code: this callback asks for it
(`control.should_save`) and takes the files into the run's checkpoint. Those that the Trainer would have written
anyway are linked, so that the bytes are there once and both places stay valid; those that only the run asked for are
moved, and while the Trainer writes them its `save_total_limit` is one higher, so that it deletes none of its own
for them. One that only the run asked for may fail, on a full disk, and the training goes on; one that was not finished
when its process died is removed by the next attempt. Linked files must not be written anew in place: after a resume,
what the Trainer is going to write again is given bytes of its own first.

Source: `transformers.Trainer._run_epoch`, `_maybe_log_save_evaluate` and `_save_checkpoint` of 5.24.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

import transformers

from gscalar.frameworks.torch.following import (
    Followed,
    ForwardWatch,
    follower_of,
    model_facts,
    plain_settings,
    run_to_follow,
    take_files,
    unshare_files,
)
from gscalar.model.spans import SpanKind
from gscalar.runtime.following import Follower
from gscalar.runtime.session import Run

NAME: Final = "transformers"

# Recorded whatever they are; of the others only what differs from the Trainer's own defaults.
_ALWAYS: Final = frozenset((
    "bf16", "fp16", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type", "max_grad_norm", "max_steps",
    "num_train_epochs", "optim", "per_device_train_batch_size", "seed", "warmup_steps", "weight_decay",
))  # fmt: skip
# Where it runs and where it writes says nothing of what is trained.
_NEVER: Final = frozenset(("output_dir", "logging_dir", "run_name", "local_rank", "report_to", "project"))


class HuggingFaceFollowing:
    """The callback's events. Made into a `TrainerCallback` by `make_callback`."""

    def __init__(self, run: Run, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        self._watch: ForwardWatch | None = None
        self._follows = False
        self._trainers_own = False  # whether the Trainer saves this step of its own accord
        self._due = False  # whether a save was asked of the Trainer that it has not made yet
        self._stops = False
        self._limit: int | None = None  # the Trainer's own, while it is one higher
        self._failure: Exception | None = None  # of a save that only the run asked for
        self._guarded: Any = None  # the Trainer whose saves are watched
        self._evaluation_decides = False  # whether the Trainer saves this step if its evaluation says so
        self._lr = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Begin to follow."""
        model, optimizer = objects["model"], objects["optimizer"]
        if self._follows:  # the Trainer begins anew by itself, with a smaller batch
            self._end(args)
        facts = model_facts(
            model, [getattr(optimizer, "optimizer", optimizer)], f"transformers {transformers.__version__}"
        )
        self._follower.begin(
            Followed(model),
            step=state.global_step,
            world=args.world_size,
            total_steps=state.max_steps,
            facts=facts,
            settings=_settings(args),
        )
        self._follows = True
        if args.save_only_model:
            text = "save_only_model leaves the optimizer out of checkpoints: a resumed training is another one."
            self._follower.recording.note(text, "model-only")
        # A graph would break at a hook, and the copies of DataParallel have hooks of their own.
        if not args.torch_compile and args.n_gpu <= 1:
            self._watch = ForwardWatch(model, lambda: _scale_of(optimizer))
        if self._follower.rank == 0:
            self._remove_unfinished(keep=state.global_step)
            _unshare_later(Path(args.output_dir), state.global_step)
        self._guard_saves()
        self._mark_next(state, control)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """The epoch's first batches are fetched next."""
        self._mark_next(state, control)

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """The step's batches are there."""
        self._follower.mark(SpanKind.FORWARD)

    def on_substep_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """A step of many micro-steps may take longer than a hang."""
        self._follower.recording.beat("training")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """The optimizer moves next."""
        self._follower.mark(SpanKind.OPTIMIZER)
        self._lr = float(objects["optimizer"].param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> Any:
        """Record the step, and ask the Trainer for what the ranks agreed on."""
        self._follower.unmark()
        loss, samples, tokens = self._watch.take() if self._watch is not None else (None, 0, 0)
        decision = self._follower.step(
            state.global_step,
            loss=loss,
            samples=samples or args.per_device_train_batch_size * args.gradient_accumulation_steps,
            tokens=tokens,
            lr=self._lr,
            epoch=int(state.epoch or 0),
            is_last=control.should_training_stop,
        )
        self._trainers_own = control.should_save
        self._due = self._due or decision.save
        self._stops = self._stops or decision.stop
        control.should_save = control.should_save or self._due
        self._make_room(args, control)
        self._mark_next(state, control)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """What is due at the end of an epoch comes next."""
        self._trainers_own = control.should_save
        self._mark_next(state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **objects: Any) -> None:
        """Record what the Trainer logs, under its own names."""
        if self._follower.rank == 0 and not self._run.closed:
            self._run.log(_named(logs or {}))
        self._mark_next(state, control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """An evaluation is a sign of life."""
        if self._follows:
            self._follower.recording.beat("evaluation")

    def on_evaluate(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """The evaluation is over."""
        self._mark_next(state, control)

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Take what the Trainer has written into the run's checkpoint; stop where that was agreed on."""
        if not self._follows:
            return
        self._follower.unmark()
        self._give_room_back(args)
        source = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        move = not self._wanted_by_trainer(args, state)
        writes = self._follower.rank == 0
        failure, self._failure = self._failure, None

        def take(files: Path) -> None:
            if failure is not None:
                raise failure
            if writes:
                take_files(source, files, move=move)

        self._follower.save(take)
        if failure is not None and move and writes:  # here, where no rank writes into it any more
            shutil.rmtree(source, ignore_errors=True)
        self._follower.claim.release()
        self._due = False
        if self._stops:
            self._follower.stop()
        self._mark_next(state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """The loop is over; what is evaluated or logged afterwards still belongs to the run."""
        self._end(args)

    def _remove_unfinished(self, keep: int) -> None:
        """Remove what the Trainer was writing for the run alone when an attempt before ended."""
        folder = self._follower.claim.unfinished()
        if folder is not None and folder.name.startswith("checkpoint-") and folder.name != f"checkpoint-{keep}":
            shutil.rmtree(folder, ignore_errors=True)
        self._follower.claim.release()

    def _guard_saves(self) -> None:
        """Let a save that only the run asked for fail without ending the training: as any checkpoint of a run."""
        trainer = _running_trainer(self)
        if trainer is None:
            return
        self._guarded, write = trainer, trainer._save_checkpoint

        def save_checkpoint(*arguments: Any, **options: Any) -> None:
            args, state = trainer.args, trainer.state
            only_ours = self._due and not self._wanted_by_trainer(args, state)
            if only_ours and self._follower.rank == 0:
                self._follower.claim.take(Path(args.output_dir) / f"checkpoint-{state.global_step}")
            try:
                write(*arguments, **options)
            except Exception as error:
                # With a best step the Trainer lets all ranks meet amid its save, and the others wait there.
                if not only_ours or (args.world_size > 1 and getattr(state, "best_global_step", None)):
                    raise
                self._failure = error

        trainer._save_checkpoint = save_checkpoint

    def _wanted_by_trainer(self, args: Any, state: Any) -> bool:
        """Whether the Trainer would write this step's checkpoint of its own accord, or somebody else gets it too."""
        return bool(
            self._trainers_own
            or self._evaluation_decides
            or args.push_to_hub
            or getattr(state, "best_global_step", state.global_step) == state.global_step
        )

    def _make_room(self, args: Any, control: Any) -> None:
        """Let the Trainer keep all of its own beside a checkpoint that is going to be moved away."""
        self._give_room_back(args)  # an evaluation may have taken back the save before
        self._evaluation_decides = control.should_evaluate and args.save_strategy == "best"
        only_ours = control.should_save and not (self._trainers_own or self._evaluation_decides or args.push_to_hub)
        if only_ours and args.save_total_limit:
            self._limit = args.save_total_limit
            args.save_total_limit += 1

    def _give_room_back(self, args: Any) -> None:
        if self._limit is not None:
            args.save_total_limit, self._limit = self._limit, None

    def _end(self, args: Any) -> None:
        self._give_room_back(args)
        if self._watch is not None:
            self._watch.remove()
            self._watch = None
        if self._guarded is not None:
            vars(self._guarded).pop("_save_checkpoint", None)
            self._guarded = None
        self._follows = False
        self._follower.end()

    def _mark_next(self, state: Any, control: Any) -> None:
        """Book the time from now on to what the Trainer must do next."""
        if not self._follows:
            return
        if control.should_log:
            self._follower.mark(SpanKind.HOST)
        elif control.should_evaluate:
            self._follower.mark(SpanKind.EVALUATION)
        elif control.should_save:
            self._follower.mark(SpanKind.CHECKPOINT, state.global_step)
        elif control.should_training_stop:
            self._follower.mark(SpanKind.HOST)
        else:
            self._follower.mark(SpanKind.DATA_WAIT, -1)


def make_callback(run: Run | None) -> Any:
    """Return a `TrainerCallback` that records a training in the run.

    Raises:
        UserError: `run-completed`, `prepare-twice`.
    """
    kind = type("GscalarCallback", (HuggingFaceFollowing, transformers.TrainerCallback), {})
    chosen = run_to_follow(run)
    return kind(chosen, follower_of(chosen, NAME))


def last_checkpoint(run: Run | None) -> str | None:
    """Return the folder that `trainer.train(resume_from_checkpoint=...)` takes; None on a fresh start.

    Raises:
        TrainingError: `state-mismatch`.
    """
    found = follower_of(run, NAME).newest()
    return str(found.files) if found is not None else None


def _running_trainer(callback: Any) -> Any:
    """Return the Trainer whose training is beginning; None where another loop calls its callbacks."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, transformers.Trainer) and callback in trainer.callback_handler.callbacks:
            return trainer
        frame = frame.f_back
    return None


def _named(logs: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a log. The gradient's norm has the name that it has in every run."""
    numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
    if "grad_norm" in numbers:
        numbers["train/grad_norm"] = numbers.pop("grad_norm")
    return numbers


def _settings(args: Any) -> dict[str, Any]:
    given = plain_settings(args.to_dict())
    fields = type(args).__dataclass_fields__
    chosen = {}
    for name, value in given.items():
        differs = name not in fields or fields[name].default != getattr(args, name, None)
        if name in _ALWAYS or (differs and name not in _NEVER and not name.startswith(("hub_", "push_to_hub"))):
            chosen[name] = value
    return chosen


def _scale_of(optimizer: Any) -> float:
    """Return what a gradient scaler multiplies the loss by; 1 where there is none."""
    scaler = getattr(optimizer, "scaler", None)
    return float(scaler.get_scale()) if scaler is not None else 1.0


def _unshare_later(output: Path, step: int) -> None:
    """Give the Trainer's checkpoints that it is going to write again bytes of their own."""
    for folder in output.glob("checkpoint-*"):
        number = folder.name.removeprefix("checkpoint-")
        if number.isdigit() and int(number) > step:
            unshare_files(folder)
