"""Keras under a run: `model.fit(..., callbacks=[gscalar.keras.callback()])`, alone or on several workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gscalar.base.errors import EnvironmentProblem, UserError
from gscalar.runtime.session import Run, current_run, open_run

__all__ = ["applied", "arrays", "async_steps", "callback", "differentiated", "distribute", "taped"]


def callback(run: Run | None = None) -> Any:
    """Return the callback for `model.fit`: recorded, resumable, and sharded where there are several workers.

    `run` is by default the one that `gscalar.init` gave this process, or a new one.

    Raises:
        EnvironmentProblem: `package-missing`.
    """
    _check_installed()
    from gscalar.frameworks.keras.adapter import KerasFramework
    from gscalar.frameworks.keras.fitting import make_callback

    framework = KerasFramework()
    opened = run or current_run() or open_run({}, None, None, lambda objects: framework, lambda: framework)
    return make_callback(opened)


def _uncalled(model: Any) -> None:
    raise UserError(
        code="callback-not-called",
        what="Keras was given the function gscalar.keras.callback as a callback, and not what it returns.",
        value=getattr(model, "name", None),
        next_step="Put parentheses after it: callbacks=[gscalar.keras.callback()].",
    )


# What Keras asks of a callback first: without these it fails by a function that has no such attribute.
callback.__dict__.update(set_model=_uncalled, async_safe=True)


def arrays(*values: Any, batch_size: int = 32, shuffle: bool = True) -> Any:
    """Return samples in memory as data for `run.batches`: a batch is a tuple of tensors, one for each value.

    `values` are arrays, or nested arrays, whose first dim is the sample. `batch_size` is per worker.
    """
    _check_installed()
    from gscalar.frameworks.keras.data import Arrays

    return Arrays(values, batch_size, shuffle)


def taped(loss: Any, tape: Any) -> Any:
    """Return a loss that `run.step` can differentiate: a TensorFlow loss with the GradientTape that saw it.

    The gradients are those of the prepared model's trainable variables.
    """
    _check_installed()
    from gscalar.frameworks.keras.trainee import Taped

    return Taped(loss, tape)


def differentiated(loss: Any, gradients: Sequence[Any]) -> Any:
    """Return a loss with its gradients for `run.step`, as `jax.value_and_grad` returns them.

    `gradients` has one for each of the prepared model's trainable variables, in their order, or None. Variables that
    are not trained, such as the seeds of dropout and moving averages, are assigned by the loop.
    """
    _check_installed()
    from gscalar.frameworks.keras.capture import Differentiated

    return Differentiated(loss, list(gradients))


def distribute(run: Run | None = None) -> Any:
    """Return the tf.distribute strategy of the job's plan, with TF_CONFIG set for it; every process calls it, once.

    With `plan.sync.kind: allreduce` it is a MultiWorkerMirroredStrategy over all workers. With `parameter_servers` it
    is a ParameterServerStrategy, and only in the chief: in workers and parameter servers the call serves the chief,
    and ends the process when the chief's training ends.

    Call it before TensorFlow makes its first tensor, and `run.prepare` inside `strategy.scope()`. `run` is by default
    the one that `gscalar.init` gave this process, or a new one.

    Raises:
        UserError: `one-worker`, `distribute-late`.
        EnvironmentProblem: `package-missing`.
    """
    _check_installed(tensorflow=True)
    from gscalar.frameworks.keras.adapter import KerasFramework
    from gscalar.frameworks.keras.distribution import strategy_of

    framework = KerasFramework()
    return strategy_of(run or current_run() or open_run({}, None, None, lambda objects: framework, lambda: framework))


def applied(loss: Any) -> Any:
    """Return the loss of a step whose optimizer has moved already, for `run.step`: a strategy moves it by itself.

    The step is recorded, checkpointed and counted as any other; the gradients are the strategy's own affair.
    """
    _check_installed()
    from gscalar.frameworks.keras.applied import Applied

    return Applied(loss)


def async_steps(
    coordinator: Any, function: Any, *args: Any, steps: int, samples: int = 1, run: Run | None = None
) -> Iterator[Any]:
    """Yield the results of `function(*args)` on the workers of a ClusterCoordinator, until the run has taken `steps`.

    The function takes one training step and returns its loss, or a tuple that begins with it. Up to two calls a worker
    are under way, and each result is one step of the run; no call is under way while a checkpoint is taken. A
    resumed run goes on with the number of steps that its checkpoint has. `samples` are those of one step, which are
    counted for throughput.

    Raises:
        UserError: `not-prepared`, `plan-unsupported`.
    """
    _check_installed(tensorflow=True)
    from gscalar.frameworks.keras.distribution import AsyncSteps

    opened = run or current_run()
    if opened is None:
        raise UserError(
            code="not-prepared",
            what="There is no run in this process, or it has ended.",
            next_step="Call gscalar.init(...), gscalar.keras.distribute() and run.prepare(model, optimizer) first.",
        )
    return AsyncSteps(opened, coordinator, function, args, samples).take(steps)


def _check_installed(*, tensorflow: bool = False) -> None:
    """Import the Keras that the script means: the one that is loaded, or else the one that the environment names."""
    from importlib import import_module
    from importlib.util import find_spec

    from gscalar.frameworks.keras.flavors import meant_package

    if tensorflow and find_spec("tensorflow") is None:
        raise EnvironmentProblem(
            code="package-missing",
            what="TensorFlow is not installed, and tf.distribute is a part of it.",
            next_step="pip install 'gscalar[tensorflow]'.",
        )
    package = meant_package()
    if find_spec(package) is not None:
        import_module(package)
        return
    if package == "tf_keras":
        raise EnvironmentProblem(
            code="package-missing",
            what="TF_USE_LEGACY_KERAS asks for legacy Keras, which is not installed.",
            value=package,
            next_step="pip install tf_keras (with --no-deps beside tensorflow-cpu), or unset TF_USE_LEGACY_KERAS.",
        )
    raise EnvironmentProblem(
        code="package-missing",
        what="Keras is not installed.",
        next_step="pip install 'gscalar[keras]' and a backend (tensorflow, torch or jax), or 'gscalar[tensorflow]'.",
    )
