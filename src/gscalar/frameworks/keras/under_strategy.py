"""What a strategy of tf.distribute means for a model, said before TensorFlow says it.

Keras 3's `fit` does not work under a strategy of several workers (3.15): it fails while it builds the model from the
first batch, before it calls any callback. Legacy Keras's does. So the strategy that `distribute` gives out refuses
that call where it begins, when it is asked to share its data; a data set that the script has shared itself passes it,
and is only explained. And a model that was made outside of the strategy's scope trains without it, silently.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final

from gscalar.base.errors import UserError
from gscalar.runtime.session import Run

_PUBLIC_NAMES: Final = {
    "CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy",
    "ParameterServerStrategyV2": "ParameterServerStrategy",
}


def unsupported(strategy: Any) -> UserError:
    """Return the refusal of a fit of Keras 3 under a strategy."""
    servers = ", or write a loop with gscalar.keras.async_steps" if _has_servers(strategy) else ""
    sync = "with plan.sync.kind=allreduce and " if _has_servers(strategy) else ""
    kind = type(strategy).__name__
    return UserError(
        code="strategy-unsupported",
        what="Keras 3's model.fit does not work under this strategy of tf.distribute.",
        value=_PUBLIC_NAMES.get(kind, kind),
        next_step=(
            f"Build the model outside strategy.scope(), {sync}without gscalar.keras.distribute(): "
            "gscalar.keras.callback() lets the workers exchange gradients by itself. "
            f"Or use tf_keras (TF_USE_LEGACY_KERAS=1), whose fit works under it{servers}."
        ),
    )


def refuse_fit(strategy: Any) -> None:
    """Let a strategy refuse a fit of Keras 3 when that asks it to share its data."""
    share = strategy.experimental_distribute_dataset

    @functools.wraps(share)
    def checked(*arguments: Any, **options: Any) -> Any:
        if _in_fit():
            raise unsupported(strategy)
        return share(*arguments, **options)

    strategy.experimental_distribute_dataset = checked


def explain(run: Run, error: BaseException) -> None:
    """Say what Keras 3 fails by where it was not refused before: on data that is shared already, or in `evaluate`."""
    if isinstance(error, ValueError) and "PerReplica" in str(error):
        run.note(
            "Keras 3's model.fit and model.evaluate do not work under a strategy of several workers. Build the model "
            "outside strategy.scope(), without gscalar.keras.distribute(): with gscalar.keras.callback() the workers "
            "exchange gradients anyway. Or use tf_keras (TF_USE_LEGACY_KERAS=1)."
        )


def note_outside(run: Run, strategy: Any, variables: Iterable[Any]) -> None:
    """Say once that variables are trained which the strategy does not know, because its scope was not entered."""
    if run.rank > 0 or all(_strategy_of(variable) is strategy for variable in variables):
        return
    if _has_servers(strategy):
        then = "the chief trains them alone. Build the model inside `with strategy.scope():`."
    else:
        then = (
            "it does not average their gradients. Build the model inside `with strategy.scope():`, or leave out "
            "distribute() where the run averages them anyway (gscalar.keras.callback, gscalar.keras.taped)."
        )
    run.note(f"The strategy of gscalar.keras.distribute() does not know this model's variables: {then}")


def _strategy_of(variable: Any) -> Any:
    held = getattr(variable, "_value", variable)  # Keras 3 wraps the variable of its backend
    return getattr(held, "_distribute_strategy", None)


def _has_servers(strategy: Any) -> bool:
    return type(strategy).__name__.startswith("ParameterServerStrategy")


def _in_fit() -> bool:
    """Whether a `fit` of Keras 3 is on the call stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_globals.get("__name__", "").startswith("keras."):
            return True
        frame = frame.f_back
    return False
