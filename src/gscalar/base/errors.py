"""The one error tree, with a stable code for every error a user can meet.

    ScalarError
    ├── UserError            exit 2: wrong usage, spec, command or id; nothing was created
    │   └── SpecError        the same, with the place in the spec (file:line:column)
    ├── EnvironmentProblem   exit 3: the machine lacks something (home not writable, package missing)
    ├── TrainingError        exit 1: the training cannot go on (non-finite loss, data set too small)
    ├── Damaged              stored bytes are not what was written; the caller falls back and says so
    └── Retryable            worth trying again as it is (a lock held, a peer not there yet)

Every error says what was wrong, the actual value, where, and what to do next. `CODES` maps each
code to its meaning; docs/errors.md is generated from it.
"""

from __future__ import annotations

from typing import Final

CODES: Final[dict[str, str]] = {
    "unknown-key": "A key of the job spec or of --set does not exist.",
    "wrong-type": "A value of the job spec has another type than the key takes.",
    "impossible-value": "A value has the right type and can never work.",
    "duplicate-key": "A key stands twice in one mapping of the job spec.",
    "missing-key": "A key that the job spec needs is absent.",
    "bad-yaml": "The job spec does not parse as YAML 1.2.",
    "bad-encoding": "The job spec, or the path of its folder, is not UTF-8 text.",
    "spec-not-found": "The path given to `gscalar run` is no spec and no folder with job.yaml.",
    "command-not-found": "The program that the job starts does not exist or cannot be executed.",
    "bad-override": "A --set argument or a word of GSCALAR_SET is not of the form key=value, or its value is no YAML.",
    "run-not-found": "No run has this id, prefix or name.",
    "ambiguous-run": "More than one run has this prefix.",
    "run-completed": "The run is completed, and nothing new was asked of it.",
    "run-active": "The run is still going, and the command needs it ended.",
    "run-not-active": "The run has ended, and the command needs it going.",
    "metric-not-found": "No series of the runs has this name, or none is of the rank asked for.",
    "no-logs": "The run has no captured output, or none of the attempt or rank asked for.",
    "not-confirmed": "A deletion was not confirmed, and there is no terminal to ask at.",
    "bad-query": "A search or sort expression of `gscalar runs` cannot be understood.",
    "bad-tag": "A tag is not of the form key=value, or its name is not allowed.",
    "home-not-writable": "The home folder cannot be created or written.",
    "store-newer": "The catalog, or the file of a run's series, was written by a newer version of gscalar.",
    "store-not-migrated": "The catalog of an older version could not be migrated, and is as it was.",
    "catalog-damaged": "The catalog's file is damaged; it can be built again from the records.",
    "catalog-busy": "Another process was writing the catalog, or a run's series, for too long.",
    "series-damaged": "The file of a run's series is damaged; it can be built again from the records.",
    "data-too-small": "The data set has fewer samples than there are workers.",
    "world-changed": "A run cannot go on with another number of workers, because its data cannot be dealt anew.",
    "fixed-key": "A key of the job spec cannot change once the run has begun.",
    "nonfinite": "The loss or a gradient is NaN or infinite and `on_nonfinite` is `stop`.",
    "mixed-weights": "Some micro-steps of one optimizer step were given a weight and others not.",
    "not-prepared": "An object was used that `prepare` has not seen.",
    "model-not-built": "A Keras model has no variables yet.",
    "backend-unsupported": "Keras runs on a backend whose training step cannot be taken apart.",
    "train-step-unknown": "A Keras model's own train_step does not move its compiled optimizer exactly once.",
    "fit-unknown": "A callback was not begun by the trainer that it is for.",
    "callback-twice": "A trainer was given two callbacks of a run.",
    "callback-not-called": "A trainer was given the function that makes a callback, and not what it returns.",
    "second-training": "A run that has followed one trainer's training was given another.",
    "trainer-world": "A trainer trains in another number of processes than were launched.",
    "package-missing": "A package that the script asked for is not installed.",
    "endless-epoch": "The data has no end, and nothing says how long an epoch is.",
    "one-worker": "A strategy to distribute over workers was asked for, and there is one.",
    "not-distributed": "The plan trains with parameter servers, and the script has not called `distribute`.",
    "distribute-late": "A strategy was asked for after TensorFlow had begun to work, or a second time.",
    "strategy-unsupported": "A model lies under a strategy, of tf.distribute or Keras, that training here cannot use.",
    "plan-unsupported": "The plan asks for something that this way of training cannot do.",
    "schedule-twice": "The script gives a schedule object and the plan gives one too.",
    "prepare-twice": "`prepare` was given models or optimizers a second time.",
    "unsupported-object": "`prepare` was given an object that no framework knows.",
    "bad-state": "A value put into `run.state` cannot be stored in a checkpoint.",
    "state-mismatch": "The checkpoint does not fit the model or optimizer of this script.",
    "checkpoint-damaged": "A checkpoint's files do not have the checksums of its manifest.",
    "record-damaged": "A record file has bytes that are no sound frame.",
    "record-not-durable": "The system could not make a record file durable; a power failure may take its end.",
    "disk-full": "The disk is full; what could not be written was counted and dropped.",
    "rendezvous-failed": "The workers of an attempt did not find each other in time.",
    "peer-lost": "A worker waited for another one that has ended or stands still.",
    "ranks-differ": "The workers make different calls, or exchange arrays of different shapes or types.",
    "launcher-unclear": "The environment names a rank without a world size, or the other way round.",
    "trace-not-found": "The target of a diagnosis is neither a run nor a file or folder.",
    "trace-unknown": "A file is none of the traces and tables that can be read.",
    "trace-damaged": "A trace, or a table of operations, cannot be read: it is empty, cut off or not what it seems.",
    "trace-mixed": "Traces that were given together are not of one training, or two are of the same rank.",
    "fix-unknown": "No fix has this name, or it does not apply to what was measured.",
    "nothing-to-replay": "A question about other steps was asked of a source that has no steps.",
    "report-not-writable": "The page or the trace of a diagnosis cannot be written where it was asked for.",
    "fault-impossible": "A fault cannot be injected into this run; nothing is left stopped or filled.",
}


class ScalarError(Exception):
    """The base of all errors of this package.

    `code` is stable and documented, `what` is one sentence, `value` is the offending value as
    the user wrote it, `where` is a place (file:line:column, a key, a path), `next_step` is what
    to do now.
    """

    exit_code: int = 1

    def __init__(
        self, *, code: str, what: str, value: object = None, where: str | None = None, next_step: str = ""
    ) -> None:
        assert code in CODES, code
        self.code = code
        self.what = what
        self.value = value
        self.where = where
        self.next_step = next_step
        super().__init__(self.message())

    def message(self) -> str:
        """Return the error as the lines that a user sees."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        if self.value is not None:
            head += f" (got {self.value!r})"
        lines = [f"{head} [{self.code}]"]
        if self.next_step:
            lines.append(f"  next: {self.next_step}")
        return "\n".join(lines)

    # Keyword-only arguments are lost by the default exception pickling, and errors cross processes.
    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.code, self.what, self.value, self.where, self.next_step)


def _rebuild(
    kind: type[ScalarError], code: str, what: str, value: object, where: str | None, next_step: str
) -> ScalarError:
    return kind(code=code, what=what, value=value, where=where, next_step=next_step)


class UserError(ScalarError):
    """Wrong usage, spec, command or id. Nothing was created."""

    exit_code = 2


class SpecError(UserError):
    """A job spec that cannot be used; `where` is file:line:column."""


class EnvironmentProblem(ScalarError):
    """The machine lacks something that the work needs."""

    exit_code = 3


class TrainingError(ScalarError):
    """The training cannot go on; the run is recorded as failed."""


class Damaged(ScalarError):
    """Stored bytes are not what was written."""


class Retryable(ScalarError):
    """Worth trying again as it is."""
