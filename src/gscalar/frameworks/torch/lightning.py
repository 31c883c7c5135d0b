"""Lightning's Trainer, followed by one callback; `lightning` and `pytorch_lightning` alike.

Where the time of a step goes, the Trainer's profiler knows: it names everything that it does (`train_dataloader_next`,
`batch_to_device`, `training_step`, `backward`, `optimizer_step`), whichever profiler is in place, and this callback
listens to the names. What the module logs comes through a logger that is added to the Trainer's own. Both are
taken away when the fit is over.

A checkpoint is what `trainer.save_checkpoint` writes, inside the run's commit and without its barrier, at the end of
a batch; where a validation or the end of the epoch follows that batch, after them, since the Trainer does not do
again what a checkpoint of a batch has before it. What Lightning's checkpoints lack for going on exactly is kept
beside: the random numbers of every rank, and those with which the epoch's data were shuffled. A resumed fit reads the
epoch's data from its beginning in that order, and discards the batches that were trained on; a loader that has a
state of its own is left to Lightning.

Limits: a module's or another callback's hook that draws random numbers between `on_fit_start` or
`on_train_epoch_start` and the first batch shifts the order on a resume. Manual optimization counts a batch as one
step, however many optimizers moved. Source: Lightning 2.6, `loops/fit_loop.py`,
`training_epoch_loop.py` and `Trainer.save_checkpoint`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
import torch

from gscalar.frameworks.torch.following import (
    Followed,
    batch_size,
    follower_of,
    model_facts,
    plain_settings,
    run_to_follow,
)
from gscalar.frameworks.torch.randomness import random_state, set_random_state
from gscalar.model.spans import SpanKind
from gscalar.runtime.following import Follower
from gscalar.runtime.session import Run

NAME: Final = "lightning"
FILE: Final = "lightning.ckpt"

_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")
# The ends of the profiler's names, and what they are.
_KINDS: Final = {
    "].train_dataloader_next": SpanKind.DATA_WAIT,
    ".batch_to_device": SpanKind.H2D,
    ".training_step": SpanKind.FORWARD,
    ".backward": SpanKind.BACKWARD,
    ".optimizer_step": SpanKind.OPTIMIZER,
    "save_checkpoint": SpanKind.CHECKPOINT,
}
_SETTINGS: Final = ("max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val", "precision", "num_nodes")


class LightningFollowing:
    """The callback's events. Made into a `Callback` by `make_callback`."""

    def __init__(self, run: Run, follower: Follower, logger: Callable[[Run, str], Any]) -> None:
        self._run = run
        self._follower = follower
        self._make_logger = logger
        self._listener: ProfilerListener | None = None
        self._logger: Any = None
        self._losses: list[torch.Tensor] = []
        self._samples = self._tokens = 0
        self._lr = 0.0
        self._due = False  # whether a checkpoint waits for the end of a validation or an epoch
        self._stops = False
        self._began = self._resumed = False
        self._order_random = b""  # the random numbers with which the epoch's data were shuffled

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Keep the random numbers that shuffle the first epoch, and join the Trainer's loggers."""
        self._order_random = random_state()
        if self._follower.rank == 0:
            self._logger = self._make_logger(self._run, trainer.default_root_dir)
            trainer.loggers = [*trainer.loggers, self._logger]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to follow; go on where the checkpoint was taken, data and random numbers included."""
        self._begin(trainer, pl_module)
        if self._resumed:
            self._go_on(trainer)
        self._listener = ProfilerListener(trainer, self._follower)
        self._follower.mark(SpanKind.HOST)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Keep the random numbers that shuffle this epoch, unless the fit has opened its data already."""
        if trainer.current_epoch == 0:
            return
        self._order_random = random_state()
        loop = trainer.fit_loop
        going_on = getattr(loop, "is_resuming", False) or loop.epoch_loop.restarting
        if going_on and self._resumed:
            # Opened before the random numbers were put back. The undisturbed training opens them here.
            iter(loop._data_fetcher)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Keep the learning rate, which the schedule has moved when the step is over."""
        self._lr = float(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add the batch; record the step that it ends, and act on what the ranks agree on."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach().reshape(()))
        samples, tokens = batch_size(batch)
        self._samples += samples
        self._tokens += tokens
        if trainer.global_step == self._follower.step_done:
            self._follower.recording.beat("training")
            return
        follower, losses = self._follower, self._losses
        follower.unmark()
        decision = follower.step(
            trainer.global_step,
            loss=torch.stack(losses).sum() if losses else None,
            samples=self._samples,
            tokens=self._tokens,
            lr=self._lr,
            epoch=trainer.current_epoch + trainer.is_last_batch,
        )
        self._losses, self._samples, self._tokens = [], 0, 0
        follower.mark(SpanKind.HOST)
        self._due = self._due or decision.save
        self._stops = self._stops or decision.stop
        if not (trainer.is_last_batch or _validates(trainer)):
            self._save_if_due(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation inside the training begins."""
        if self._listener is not None:
            self._listener.listening = False
            self._follower.mark(SpanKind.EVALUATION)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *others: Any, **more: Any) -> None:
        """An evaluation is a sign of life."""
        if self._listener is not None:
            self._follower.recording.beat("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The evaluation is over."""
        if self._listener is not None:
            self._listener.listening = True
            self._follower.mark(SpanKind.HOST)
            if not trainer.is_last_batch:
                self._save_if_due(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Take the checkpoint that waited for the epoch's end."""
        self._save_if_due(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take the last checkpoint; what is logged afterwards still belongs to the run."""
        if self._follower.wants_last():
            self._save(trainer)
        self._follower.end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Take a training for done that was done before: no other event tells of it."""
        if not self._began:
            self._begin(trainer, pl_module)
            self._follower.end()
        self._began = False

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The fit is over, whoever catches the exception; `teardown` is not called then."""
        if self._began:
            self._follower.end()
        self._leave(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The fit is over."""
        self._leave(trainer)

    def _leave(self, trainer: Any) -> None:
        """Leave the Trainer as it was."""
        if self._listener is not None:
            self._listener.remove()
            self._listener = None
        if self._logger is not None:
            trainer.loggers = [logger for logger in trainer.loggers if logger is not self._logger]
            self._logger = None

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        package = type(trainer).__module__.partition(".")[0]
        version = getattr(sys.modules.get(package), "__version__", "")
        step = trainer.global_step
        self._resumed = self._follower.begin(
            Followed(pl_module),
            step=step,
            world=trainer.world_size,
            total_steps=_total_steps(trainer),
            facts=model_facts(pl_module, trainer.optimizers, f"{package} {version}"),
            settings=_settings(trainer, pl_module),
        )
        self._began = True

    def _save_if_due(self, trainer: Any) -> None:
        if not self._due:
            return
        self._due = False
        if not self._follower.is_saved():
            self._save(trainer)
        if self._stops:
            self._follower.stop()

    def _save(self, trainer: Any) -> None:
        state = {"random": random_state(), "order": self._order_random}
        self._follower.save(lambda files: _write(trainer, files / FILE), msgspec.msgpack.encode(state))

    def _go_on(self, trainer: Any) -> None:
        """Put data and random numbers where they were; in another world only what Lightning itself restores."""
        found, follower = self._follower.found, self._follower
        assert found is not None, "it was resumed"
        if len(found.ranks) != trainer.world_size:
            text = (
                f"The checkpoint is of {len(found.ranks)} workers and goes on with {trainer.world_size}: the epoch's "
                "data are dealt anew, and random numbers are fresh."
            )
            follower.recording.note(text, "world-changed")
            return
        state = msgspec.msgpack.decode(found.ranks[follower.rank])
        progress = trainer.fit_loop.epoch_loop.batch_progress
        if progress.current.ready > 0 and not progress.is_last_batch:
            follower.mark(SpanKind.DATA_WAIT, -1)
            self._order_random = state["order"]
            skip_batches(trainer, progress.current.ready, state["order"], lambda: follower.recording.beat("training"))
        set_random_state(state["random"])


class ProfilerListener:
    """Hears what the Trainer tells its profiler, and turns it into spans."""

    def __init__(self, trainer: Any, follower: Follower) -> None:
        self.listening = True
        self._profiler = trainer.profiler
        self._follower = follower
        self._open: list[tuple[str, Any]] = []
        self._start, self._stop = self._profiler.start, self._profiler.stop
        self._profiler.start, self._profiler.stop = self._on_start, self._on_stop

    def remove(self) -> None:
        """Let the profiler be."""
        del self._profiler.start, self._profiler.stop

    def _on_start(self, action_name: str) -> None:
        if self.listening:
            kind = next((kind for end, kind in _KINDS.items() if action_name.endswith(end)), None)
            if kind is not None:
                self._open.append((action_name, self._follower.open_span(kind)))
        self._start(action_name)

    def _on_stop(self, action_name: str) -> None:
        self._stop(action_name)
        if self._open and self._open[-1][0] == action_name:
            self._follower.close_span(self._open.pop()[1])


class GscalarLogger:
    """Records what the module logs. Made into a `Logger` by `make_callback`."""

    name = "gscalar"

    def __init__(self, run: Run, folder: str) -> None:
        self._run = run
        self._folder = folder

    @property
    def version(self) -> str:
        """The run's id."""
        return self._run.id

    @property
    def save_dir(self) -> str:
        """Where the Trainer writes where it has no logger: this one has no folder of its own."""
        return self._folder

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record at the step that is done; `step` counts batches from 0."""
        if not self._run.closed:
            self._run.log({name: value for name, value in metrics.items() if name != "epoch"})

    def log_hyperparams(self, *arguments: Any, **named: Any) -> None:
        """Do nothing: they are recorded with the Trainer's settings when the training begins."""


def make_callback(run: Run | None) -> Any:
    """Return a `Callback`, of whichever package the script uses, that records a fit in the run.

    Raises:
        ModuleNotFoundError: neither package is there.
        UserError: `run-completed`, `prepare-twice`.
    """
    packages = _packages()
    callback = type("GscalarCallback", (LightningFollowing, *(each.Callback for each in packages)), {})
    loggers = [importlib.import_module(f"{each.__name__}.loggers").Logger for each in packages]
    logger = type("GscalarLogger", (GscalarLogger, *loggers), {})
    chosen = run_to_follow(run)
    return callback(chosen, follower_of(chosen, NAME), logger)


def last_checkpoint(run: Run | None) -> str | None:
    """Return the file that `trainer.fit(ckpt_path=...)` takes; None on a fresh start.

    Raises:
        TrainingError: `state-mismatch`.
    """
    found = follower_of(run, NAME).newest()
    return str(found.files / FILE) if found is not None else None


def skip_batches(trainer: Any, count: int, order_random: bytes, beat: Callable[[], None]) -> None:
    """Open the epoch's data in the order that it had, and discard the batches that were trained on."""
    fetcher = trainer.fit_loop._data_fetcher
    loader = fetcher.combined_loader
    if any(hasattr(each, "state_dict") and hasattr(each, "load_state_dict") for each in loader.flattened):
        return  # Lightning has put it back
    for each in loader.flattened:
        for name in ("sampler", "batch_sampler"):
            sampler: Any = getattr(each, name, None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(trainer.current_epoch)
    set_random_state(order_random)
    iter(fetcher)
    fetched = fetcher.fetched
    for _ in range(count):
        next(fetcher)
        beat()
    # The loop adds the batches of before itself.
    fetcher.fetched = fetched
    warnings.filterwarnings("ignore", message=".*your dataloader is not resumable")


def _packages() -> list[ModuleType]:
    """Return the packages that the script has imported, else the first one that is installed."""
    loaded = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    if loaded:
        return loaded
    name = next((name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None), _PACKAGES[-1])
    return [importlib.import_module(name)]


def _validates(trainer: Any) -> bool:
    """Whether a validation follows this batch."""
    loop = trainer.fit_loop
    return bool(loop.epoch_loop._should_check_val_fx(loop._data_fetcher))


def _write(trainer: Any, path: Path) -> None:
    """Do what `trainer.save_checkpoint` does up to its barrier.

    Where one rank fails before it (a full disk), the others would stand there for ever. The run's commit waits for all.
    """
    with trainer.profiler.profile("save_checkpoint"):
        trainer.strategy.save_checkpoint(trainer._checkpoint_connector.dump_checkpoint(), path)


def _total_steps(trainer: Any) -> int:
    total = trainer.estimated_stepping_batches
    return int(total) if total != float("inf") else 0


def _settings(trainer: Any, module: Any) -> dict[str, Any]:
    own = {name: getattr(trainer, name, None) for name in _SETTINGS}
    given = plain_settings(own | {"strategy": type(trainer.strategy).__name__})
    for name, holder in (("hparams", module), ("data", trainer.datamodule)):
        hparams = plain_settings(dict(getattr(holder, "hparams", None) or {}))
        if hparams:
            given[name] = hparams
    return given
