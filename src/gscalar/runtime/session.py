"""The run that a script holds: `gscalar.init` returns a `Run`.

The script keeps its loop. The run shards and counts the data, weighs and exchanges gradients,
records every step, writes checkpoints at step borders and continues from them. A checkpoint is
taken when the loop asks for the next batch, not inside `step`: what the script does after a step
(evaluation, logging) then lies before the checkpoint and is neither lost nor done twice.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gscalar.base.errors import UserError
from gscalar.model.events import Adopted, Nonfinite
from gscalar.model.spans import SpanKind
from gscalar.runtime.config import bind_config, config_defaults
from gscalar.runtime.cursor import Cursor
from gscalar.runtime.feeding import Extent, Fed, Feeds
from gscalar.runtime.finite import check_gradients, nonfinite_loss
from gscalar.runtime.following import Follower
from gscalar.runtime.framework import Framework, Group, Trainee
from gscalar.runtime.host_random import seed_host
from gscalar.runtime.opening import Opened, open_worker
from gscalar.runtime.saving import Saving
from gscalar.runtime.schedules import factor
from gscalar.runtime.stepping import Agreement, StepEngine
from gscalar.runtime.worker import Compose, Worker

NOT_SHARDED = (
    "The batches do not come from run.batches, so each of the {world} workers takes what its own loader gives: "
    "all of the data, unless the loader shards it."
)
NO_STEP = (
    "run.prepare was given a model, and no step went through run.step: nothing was exchanged between workers, "
    "recorded or saved."
)


class _Training:
    """What exists once models and optimizers are adopted."""

    def __init__(self, trainee: Trainee, group: Group, engine: StepEngine, saving: Saving) -> None:
        self.trainee = trainee
        self.group = group
        self.engine = engine
        self.saving = saving
        self.agreement: Agreement | None = None  # of the step that is done, until its border is crossed
        self.scale = 1.0


class Run:
    """One training, seen from one worker. Made by `gscalar.init`.

    Its attributes: `id`, `name` and `project` of the run; `rank` of this worker in a `world` of so many;
    `seed`; `config`, the script's values with the job's in their place; `state` (a `RunState`): the counters `step`,
    `tokens`, `samples` and `epoch`, and a mapping for what else a resumed run needs.
    """

    def __init__(self, opened: Opened, config: Any, compose: Compose) -> None:
        self.id = opened.run_id
        self.name = opened.name
        self.project = opened.resolved.spec.project
        self.rank = opened.launch.rank
        self.world = opened.launch.world
        self.seed = opened.resolved.spec.seed
        self.config = bind_config(config, opened.resolved.spec.config)
        self._worker = worker = Worker(opened, compose)
        worker.conclude = self._conclude
        self.state = worker.state
        self._opened = opened
        self._spec = opened.resolved.spec
        self._recording, self._timing, self._exits = worker.recording, worker.timing, worker.exits
        self._feeds = Feeds(opened.launch, self.seed, self._spec.plan.accumulate)
        self._training: _Training | None = None
        self._follower: Follower | None = None
        self._total_steps: int | None = None
        self._schedule_steps: int | None = None  # the same, where no further loop can change it

    def prepare(self, *objects: Any) -> Any:
        """Return the objects ready for training, in the order given (one object: itself).

        Models are moved to this worker's device and exchange gradients from now on; their classes
        and `state_dict` keys stay as they are. Where the run continues, models, optimizers and
        schedules have their checkpoint's state on return. Data objects are returned unchanged.

        Raises:
            UserError: `unsupported-object`, `schedule-twice`, `prepare-twice`.
            Retryable: `rendezvous-failed`.
        """
        is_data = self._worker.framework_for(objects).tools().is_data
        trained = [item for item in objects if not is_data(item)]
        adopted = iter(self._adopt(trained).objects if trained else ())
        ready = tuple(item if is_data(item) else next(adopted) for item in objects)
        return ready[0] if len(ready) == 1 else ready

    def _adopt(self, objects: list[Any]) -> Trainee:
        if self._training is not None or self._follower is not None:
            raise UserError(
                code="prepare-twice",
                what="run.prepare was given models or optimizers a second time.",
                next_step="Give all models, optimizers and schedules in one call of run.prepare(...).",
            )
        self._worker.check_distributed()
        framework, group, spec = self._worker.framework_for(objects), self._worker.connected(), self._spec
        tools, recording = framework.tools(), self._recording
        recording.beat("prepare", now=True)
        trainee, facts = framework.adopt(objects, spec.plan, self._opened.launch)
        recording.emit(Adopted(time.time_ns(), dict(facts)))
        engine = StepEngine(
            trainee,
            group,
            world=self.world,
            accumulate=spec.plan.accumulate,
            clip_norm=spec.plan.clip_norm,
            scalar=tools.scalar,
            check_every_loss=spec.on_nonfinite == "stop",
            ledger=self._timing.ledger,
        )
        engine.expect(None)
        checkpointer = self._worker.checkpointer()
        saving = Saving(checkpointer, trainee, group, tools, recording, rank=self.rank, world=self.world)
        saving.restore(self.state, again=self._opened.attempt > 0)
        tools.watch_compilation(lambda: recording.beat("compile", now=True))
        tools.watch_collectives(trainee, self._timing.ledger)
        self._training = _Training(trainee, group, engine, saving)
        recording.beat("prepare", now=True)
        return trainee

    def batches(
        self, data: Any, *, epochs: int | None = None, steps: int | None = None, sharded: bool = False
    ) -> Iterator[Any]:
        """Yield this worker's micro-batches, from where the run stands.

        Ends when `epochs` passes over the data or `steps` optimizer steps are done, counted from the
        start of the run and not of the attempt. Without both it is one more pass. The data object's
        batch size is per worker; its order, if it shuffles, follows from the run's seed alone. A run that
        goes on with another number of workers keeps the global batch that it began with.
        `sharded` says that an iterable already yields only this rank's share.

        Raises:
            TrainingError: `data-too-small`, `world-changed`.
        """
        training = self._trained("batches")
        fed = self._feeds.of(data, self._worker.framework_for((data,)), sharded, self.state.orders)
        for event in self._feeds.announce(fed, self.state, time.time_ns()):
            self._recording.emit(event)
        cursor = self.state.cursors.get(fed.name, Cursor())
        extent = self._feeds.extend(fed, epochs, steps, done=self.state.step, cursor=cursor)
        self._total_steps = extent.total_steps
        self._schedule_steps = extent.total_steps if extent.decided else None
        return self._loop(training, fed, extent)

    def _loop(self, training: _Training, fed: Fed, extent: Extent) -> Iterator[Any]:
        state, saving = self.state, training.saving
        cursor = state.cursors.setdefault(fed.name, Cursor())
        saving.ready_random(state, self.seed, self._spec.deterministic)
        source = fed.feed.batches(cursor, state.data_states.get(fed.name), self._spec.plan.accumulate)
        self._exits.in_loop = True
        timing = self._timing
        timing.start()
        try:
            while True:
                timing.resume()
                self._cross_border(training)
                if extent.steps is not None and state.step >= extent.steps:
                    break
                if extent.epochs is not None and state.cursors[fed.name].epoch >= extent.epochs:
                    break
                waiting = timing.clock.begin(SpanKind.DATA_WAIT)
                batch = next(source)
                timing.end_data_wait(waiting, num_ready=batch.num_ready, transfer_s=batch.transfer_s)
                training.engine.expect(batch)
                timing.yield_to_script(SpanKind.FORWARD)
                try:
                    yield batch.value
                finally:
                    state.cursors[fed.name] = batch.after
                    if batch.data_state is not None:
                        state.data_states[fed.name] = batch.data_state
            if saving.checkpointer.wanted_at_end:
                saving.save_last(state)
        finally:
            self._exits.in_loop = False
            source.close()
            timing.resume()
            timing.yield_to_script()
            # Once the interpreter shuts down no thread pool takes work, and the writer needs one.
            saving.checkpointer.wait()

    def eval_batches(self, data: Any, *, sharded: bool = False) -> Iterator[Any]:
        """Yield this worker's share of one pass: every sample is met once over all ranks, in order.

        Ranks may get different numbers of batches; no collective runs inside, and the training's
        random numbers are not touched by the data. Put models in evaluation mode as usual.
        """
        feed = self._feeds.to_evaluate(data, self._worker.framework_for((data,)), sharded)
        trainee = self._training.trainee if self._training is not None else None
        evaluation = self._timing.clock.begin(SpanKind.EVALUATION)
        try:
            for batch in feed.evaluation():
                self._recording.beat("evaluation")
                if trainee is not None:
                    trainee.evaluate(True)
                try:
                    yield batch
                finally:
                    if trainee is not None:
                        trainee.evaluate(False)
        finally:
            self._timing.clock.end(evaluation)

    def step(self, loss: Any, *, weight: float | None = None, tokens: float | None = None) -> bool:
        """Take one micro-step; return True when the optimizer moved.

        `loss` is the mean over the micro-batch. `weight` is what the micro-batch counts in the mean
        over the global batch: by default its number of samples; give the number of tokens where the
        loss is a mean over tokens. `tokens` are counted for throughput only.

        Raises:
            TrainingError: `nonfinite`, where `on_nonfinite` is `stop`.
        """
        engine = self._trained("step").engine
        self.backward(loss, weight=weight, tokens=tokens)
        if not engine.at_border:
            engine.expect(None)
            return False
        self.sync()
        self.update()
        return True

    def backward(self, loss: Any, *, weight: float | None = None, tokens: float | None = None) -> None:
        """Add the gradient of one micro-step; at the border it is averaged over all ranks."""
        training, timing = self._trained("backward"), self._timing
        timing.start()
        timing.resume()
        span = timing.clock.begin(SpanKind.BACKWARD)
        if self.world > 1 and not self._feeds.used:
            self._feeds.used = True  # said once
            self._recording.note(NOT_SHARDED.format(world=self.world), "not-sharded")
        due = self._worker.checkpoint_asked or (self.rank == 0 and training.saving.checkpointer.due_by_time())
        training.engine.backward(loss, weight=weight, tokens=tokens, stop=self._exits.stop_requested, checkpoint=due)
        timing.end_backward(span)
        if not training.engine.at_border:  # a step of many micro-steps may take longer than a hang
            self._recording.beat("training")
        timing.yield_to_script()

    def sync(self) -> None:
        """Wait until all ranks agree on the step: its total weight, and whether to stop or save."""
        training, timing = self._trained("sync"), self._timing
        timing.resume()
        waiting = timing.clock.begin(SpanKind.COMMUNICATION)
        training.agreement, training.scale = training.engine.sync()
        timing.clock.end(waiting)
        if training.agreement.nonfinite and self._spec.on_nonfinite == "stop":
            name = self._worker.tools.first_nonfinite(training.trainee)
            seen_here = training.engine.nonfinite
            if seen_here:
                self._recording.emit(Nonfinite(time.time_ns(), self.state.step + 1, self.rank, "loss", name))
            ranks = training.group.start_sum([float(seen_here and rank == self.rank) for rank in range(self.world)])()
            raise nonfinite_loss(self.state.step + 1, [rank for rank, seen in enumerate(ranks) if seen], name)
        timing.yield_to_script()

    def update(self) -> None:
        """Clip, move the optimizers and the schedule, zero the gradient, and count the step."""
        training, timing = self._trained("update"), self._timing
        state, schedule = self.state, self._spec.plan.schedule
        assert training.agreement is not None, "update follows sync"
        timing.resume()
        moving = timing.clock.begin(SpanKind.OPTIMIZER)
        if self._spec.on_nonfinite == "stop":
            tools, writer = self._worker.tools, self._recording.writer
            check_gradients(tools, training.trainee, writer, step=state.step + 1, rank=self.rank)
        lr_factor = factor(schedule, state.step, self._schedule_steps) if schedule is not None else None
        result = training.engine.update(training.agreement, training.scale, lr_factor)
        timing.clock.end(moving)
        state.step += 1
        self._worker.step_over(result, epoch=state.epoch, total_steps=self._total_steps or 0)
        if not self._exits.in_loop:
            self._cross_border(training)
            # The script may end here, and the writer needs threads that a dying interpreter does not start.
            training.saving.checkpointer.wait()
        timing.yield_to_script()

    def log(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        """Record named numbers at the current step (or the one given). Every rank may log.

        A number that is on the host is in the kernel when this returns and survives SIGKILL. A
        tensor on a device is copied without waiting and written by the end of the next step.

        Raises:
            TypeError: a value is no number; the message names it.
        """
        self._recording.log(self.state.step if step is None else step, values)

    def reduce(self, values: Any, weights: Any = None) -> float:
        """Return the weighted mean of the values of all ranks, by one collective.

        `values` is a number or a list of them (tensors of one element count as numbers); a rank may
        give an empty list. Without weights every value counts once. NaN where the weights sum to 0.
        """
        scalar = self._recording.scalar
        numbers = [scalar(value)() for value in _listed(values)]
        shares = [1.0] * len(numbers) if weights is None else [scalar(weight)() for weight in _listed(weights)]
        if len(shares) != len(numbers):
            raise ValueError(f"reduce was given {len(numbers)} values and {len(shares)} weights")
        sums = [math.fsum(n * w for n, w in zip(numbers, shares, strict=True)), math.fsum(shares)]
        if self.world > 1:
            sums = self._worker.connected().start_sum(sums)()
        return sums[0] / sums[1] if sums[1] else math.nan

    def note(self, text: str, *, level: str = "warning") -> None:
        """Record one line for people; the summary and `gscalar show` print it."""
        self._recording.note(text, "note", level)

    def checkpoint(self) -> None:
        """Ask for a checkpoint at the next step border; one rank's wish is enough."""
        self._worker.checkpoint_asked = True

    def finish(self) -> None:
        """End the run in order: wait for the checkpoint, record the digests, close the record.

        Called by itself when the script ends; call it to end a run earlier, as in a notebook.
        """
        self._worker.finish()

    def _conclude(self) -> dict[str, str]:
        """Say what was forgotten, and return the digests of weights and data."""
        if self._training is not None and self.state.step == 0:
            self._recording.note(NO_STEP, "no-step")
        digests = {}
        if self._training is not None and self.rank == 0:
            digests["weights"] = self._worker.tools.weights_digest(self._training.trainee)
        fed = self._feeds.first()
        if fed is not None and fed.name in self.state.cursors:
            digests["data"] = fed.feed.digest(self.state.cursors[fed.name])
        return digests

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, SystemExit):
            self._exits.note_exit(error.code)
        else:
            self._worker.failed(error)

    @property
    def device(self) -> Any:
        """The framework's device of this worker; None before one of its objects was seen."""
        return self._worker.device

    @property
    def launched(self) -> bool:
        """Whether `gscalar run` has launched this worker."""
        return self._opened.supervised

    @property
    def closed(self) -> bool:
        """Whether the run has ended for this worker: finished, stopped or failed."""
        return self._worker.closed

    def _cross_border(self, training: _Training, *, save: bool = False) -> None:
        """Act on what all ranks agreed at the step that is done: save, stop."""
        agreement, training.agreement = training.agreement, None
        if agreement is None:
            return
        saving = training.saving
        if save or agreement.checkpoint or agreement.stop or saving.checkpointer.due_by_step(self.state.step):
            self._worker.checkpoint_asked = False
            span = self._timing.clock.begin(SpanKind.CHECKPOINT, self.state.step)
            saving.save(self.state)
            self._timing.clock.end(span)
        if agreement.stop:
            saving.settle()
            self._worker.stop()

    def _trained(self, call: str) -> _Training:
        if self._training is None:
            raise UserError(
                code="not-prepared",
                what=f"run.{call} was called before run.prepare was given a model and an optimizer.",
                next_step="Call model, optimizer, data = run.prepare(model, optimizer, data) first.",
            )
        return self._training


def open_run(
    arguments: Mapping[str, Any],
    config: Any,
    home: str | os.PathLike[str] | None,
    compose: Compose,
    loaded: Callable[[], Framework | None],
    *,
    seeds: bool = True,
) -> Run:
    """Return this process's run, with the random numbers of what is loaded seeded alike on all ranks.

    Without `seeds` the random numbers stay as they are: another trainer has seeds of its own.
    """
    defaults = config_defaults(config)
    before = _opened_here.run
    if before is not None and before.closed and before.launched:
        raise _over(before)  # a launch has one run, and its record is closed
    opened = open_worker({**arguments, "config": defaults} if defaults else arguments, home)
    run = _opened_here.run = Run(opened, config, compose)
    if not seeds:
        return run
    framework = loaded()
    if framework is not None:
        framework.tools().seed(run.seed, opened.resolved.spec.deterministic)
        return run
    seed_host(run.seed)
    return run


def follow(run: Run, name: str) -> Follower:
    """Return what follows the training of a trainer of this name in the run: the same one at every call.

    Raises:
        UserError: `prepare-twice`, where the run trains already; `run-completed`.
    """
    if run.closed:
        raise _over(run)
    if run._training is not None or (run._follower is not None and run._follower.name != name):
        raise UserError(
            code="prepare-twice",
            what=f"The run trains already, and cannot follow a {name} trainer too.",
            next_step="Open one run for each training: run.finish(), then gscalar.init(...).",
        )
    run._worker.check_distributed()
    if run._follower is None:
        run._follower = Follower(run._worker, name)
    return run._follower


def _over(run: Run) -> UserError:
    return UserError(
        code="run-completed",
        what="The run of this process is over, and nothing more can be recorded in it.",
        value=run.id,
        next_step="Train before run.finish(); a launched job has one run.",
    )


def current_run() -> Run | None:
    """Return the run that this process opened last; None once it is closed."""
    run = _opened_here.run
    return run if run is not None and not run.closed else None


class _OpenedHere:
    run: Run | None = None


_opened_here = _OpenedHere()


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else [values]
