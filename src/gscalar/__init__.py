"""Run, record, resume and explain model training, from a laptop to a cluster.

import gscalar

run = gscalar.init(project="lm", config={"lr": 3e-3})
model, optimizer, data = run.prepare(model, optimizer, data)
for batch in run.batches(data, epochs=3):
    loss = model(batch)
    if run.step(loss):
        run.log({"loss": loss})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gscalar.base.errors import (
    Damaged,
    EnvironmentProblem,
    Retryable,
    ScalarError,
    SpecError,
    TrainingError,
    UserError,
)
from gscalar.base.version import __version__

if TYPE_CHECKING:
    import os

    from gscalar.runtime.framework import Framework
    from gscalar.runtime.session import Run

__all__ = [
    "Damaged",
    "EnvironmentProblem",
    "Retryable",
    "Run",
    "ScalarError",
    "SpecError",
    "TrainingError",
    "UserError",
    "__version__",
    "huggingface",
    "init",
    "keras",
    "lightning",
]


def init(
    project: str | None = None,
    *,
    name: str | None = None,
    config: Any = None,
    seed: int | None = None,
    plan: Mapping[str, Any] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    home: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Run:
    """Return the run of this process: the launched job's, or a new one of a world of one.

    `config` are the script's hyperparameters (a mapping, a dataclass or a namespace); `run.config`
    has them with the job's values in their place. The other arguments are keys of the job spec
    (`plan`, `checkpoint`, and as `settings` for example `deterministic`, `on_nonfinite`, `tags`);
    a launched job's own values win. Seeds Python, NumPy and the framework, where they are loaded.

    Raises:
        UserError: an argument that the job spec would not take either.
        EnvironmentProblem: `home-not-writable`, `launcher-unclear`.
    """
    from gscalar.runtime.session import open_run

    given = {"project": project, "name": name, "seed": seed, "plan": plan, "checkpoint": checkpoint, **settings}
    arguments = {key: value for key, value in given.items() if value is not None}
    return open_run(arguments, config, home, _framework_of, _loaded_framework)


def _framework_of(objects: Sequence[Any]) -> Framework:
    """Return the framework whose objects these are; it is imported here and not before."""
    for item in objects:
        # Asked first: a Keras model is a torch module too where torch is Keras's backend.
        if any(kind.__module__.partition(".")[0] in ("keras", "tensorflow", "tf_keras") for kind in type(item).__mro__):
            from gscalar.frameworks.keras.adapter import KerasFramework

            return KerasFramework()
        if any(kind.__module__.partition(".")[0] in ("torch", "torchdata") for kind in type(item).__mro__):
            from gscalar.frameworks.torch.adapter import TorchFramework

            return TorchFramework()
    loaded = None if objects else _loaded_framework()  # run.reduce before run.prepare
    if loaded is not None:
        return loaded
    kinds = ", ".join(f"{type(item).__module__}.{type(item).__name__}" for item in objects)
    raise UserError(
        code="unsupported-object",
        what="No training framework was recognised in what run.prepare was given.",
        value=kinds,
        next_step="Give a torch module, its optimizer and its data loader, or a Keras model and its data.",
    )


def _loaded_framework() -> Framework | None:
    """Return the framework that the script has imported already, or None."""
    import sys

    keras = sys.modules.get("keras") or sys.modules.get("tf_keras")
    if keras is not None and ("torch" not in sys.modules or keras.backend.backend() == "torch"):
        from gscalar.frameworks.keras.adapter import KerasFramework

        return KerasFramework()
    if "torch" not in sys.modules and "tensorflow" in sys.modules:
        from gscalar.frameworks.keras.adapter import KerasFramework

        return KerasFramework()
    if "torch" in sys.modules:
        from gscalar.frameworks.torch.adapter import TorchFramework

        return TorchFramework()
    return None


_TRAINERS = ("huggingface", "keras", "lightning")  # modules of their own, imported when they are asked for


def __getattr__(name: str) -> Any:
    if name in _TRAINERS:
        import importlib

        return importlib.import_module(f"gscalar.{name}")
    if name == "Run":
        from gscalar.runtime.session import Run

        return Run
    raise AttributeError(f"module 'gscalar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "Run", *_TRAINERS})
