"""Lightning's Trainer: `callback` records its fit, `last_checkpoint` says what it goes on from.

trainer = pl.Trainer(max_epochs=3, callbacks=[gscalar.lightning.callback()])
trainer.fit(module, data, ckpt_path=gscalar.lightning.last_checkpoint())
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from gscalar.base.errors import EnvironmentProblem

if TYPE_CHECKING:
    from gscalar.runtime.session import Run

__all__ = ["callback", "last_checkpoint"]


def callback(run: Run | None = None) -> Any:
    """Return a Lightning `Callback` that records a fit in the run, and saves and stops it.

    Without a run it is the one that `gscalar.init` has opened, or a new one. It is a callback of `lightning` or of
    `pytorch_lightning`, whichever the script has imported.

    Raises:
        EnvironmentProblem: `package-missing`.
        UserError: `run-completed`, `prepare-twice`.
    """
    try:
        return _following().make_callback(run)
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def last_checkpoint(run: Run | None = None) -> str | None:
    """Return the run's newest checkpoint that verifies, for `ckpt_path`; None on a fresh start.

    Raises:
        EnvironmentProblem: `package-missing`.
        TrainingError: `state-mismatch`, when the run's checkpoints are another trainer's.
    """
    path: str | None = _following().last_checkpoint(run)
    return path


def _following() -> ModuleType:
    try:
        from gscalar.frameworks.torch import lightning
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return lightning


def _missing(error: ModuleNotFoundError) -> Exception:
    if (error.name or "").partition(".")[0] not in ("torch", "lightning", "pytorch_lightning"):
        return error
    return EnvironmentProblem(
        code="package-missing",
        what="gscalar.lightning needs torch, and lightning or pytorch_lightning.",
        value=error.name,
        next_step="pip install 'gscalar[lightning]'",
    )
