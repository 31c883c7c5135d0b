"""Keras under a run: `model.fit(..., callbacks=[gscalar.keras.callback()])`, alone or on several workers."""

from __future__ import annotations

from typing import Any

from gscalar.base.errors import EnvironmentProblem
from gscalar.runtime.session import Run, current_run, open_run

__all__ = ["arrays", "callback", "taped"]


def callback(run: Run | None = None) -> Any:
    """Return the callback for `model.fit`: recorded, resumable, and sharded where there are several workers.

    `run` is by default the one that `gscalar.init` gave this process, or a new one.

    Raises:
        EnvironmentProblem: `package-missing`.
    """
    _check_installed()
    from gscalar.frameworks.keras.adapter import KerasFramework
    from gscalar.frameworks.keras.fitting import ScalarCallback

    framework = KerasFramework()
    opened = run or current_run() or open_run({}, None, None, lambda objects: framework, lambda: framework)
    return ScalarCallback(opened)


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


def _check_installed() -> None:
    from importlib.util import find_spec

    if find_spec("keras") is None:
        raise EnvironmentProblem(
            code="package-missing",
            what="Keras is not installed.",
            next_step="pip install 'gscalar[keras]' and a backend (tensorflow or torch), or 'gscalar[tensorflow]'.",
        )
