"""The Hugging Face Trainer: `callback` records its training, `last_checkpoint` says what it goes on from.

trainer = transformers.Trainer(model=model, args=args, train_dataset=data, callbacks=[gscalar.huggingface.callback()])
trainer.train(resume_from_checkpoint=gscalar.huggingface.last_checkpoint())
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from gscalar.base.errors import EnvironmentProblem

if TYPE_CHECKING:
    from gscalar.runtime.session import Run

__all__ = ["callback", "last_checkpoint"]


def callback(run: Run | None = None) -> Any:
    """Return a `transformers.TrainerCallback` that records the training in the run, and saves and stops it.

    Without a run it is the one that `gscalar.init` has opened, or a new one.

    Raises:
        EnvironmentProblem: `package-missing`.
        UserError: `run-completed`, `prepare-twice`.
    """
    return _following().make_callback(run)


def last_checkpoint(run: Run | None = None) -> str | None:
    """Return the run's newest checkpoint that verifies, for `resume_from_checkpoint`; None on a fresh start.

    Raises:
        EnvironmentProblem: `package-missing`.
        TrainingError: `state-mismatch`, when the run's checkpoints are another trainer's.
    """
    path: str | None = _following().last_checkpoint(run)
    return path


def _following() -> ModuleType:
    try:
        from gscalar.frameworks.torch import huggingface
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "transformers", "accelerate"):
            raise
        raise EnvironmentProblem(
            code="package-missing",
            what="gscalar.huggingface needs transformers and torch.",
            value=error.name,
            next_step="pip install 'gscalar[huggingface]'",
        ) from error
    return huggingface
