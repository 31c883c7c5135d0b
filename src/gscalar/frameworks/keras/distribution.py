"""A strategy of tf.distribute over the processes of a run, and loops whose optimizer that strategy moves.

TensorFlow has its own servers, which find each other by TF_CONFIG. It is made here of what the processes of the
gang tell one another, so that the script is the same on a laptop and under every launcher. The plan says which
strategy it is:

    plan.sync.kind       strategy                       who runs the loop
    allreduce            MultiWorkerMirroredStrategy    every worker
    parameter_servers    ParameterServerStrategy        the chief; the others stay in `distribute`

Limits: TensorFlow's servers listen on all interfaces and ask nobody who they are, so the network must be trusted.
A port is chosen by opening and closing it; somebody else may take it before TensorFlow does, and the attempt is
then started again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.adapter import KerasFramework
from gscalar.frameworks.keras.steps_ahead import StepsAhead
from gscalar.frameworks.keras.under_strategy import explain, note_outside, refuse_fit
from gscalar.model.roles import Role
from gscalar.runtime.driving import Driver
from gscalar.runtime.gang import Gang
from gscalar.runtime.session import Run


def strategy_of(run: Run) -> Any:
    """Return the strategy that the run's plan names, in the processes that run its loop; others serve and end here.

    Raises:
        UserError: `one-worker`, `distribute-late`.
    """
    gang = Gang(run)
    if gang.has_met or (not gang.serves_chief and tf.executing_eagerly() and _has_begun()):
        raise UserError(
            code="distribute-late",
            what="A strategy must be asked for once, and before TensorFlow makes its first tensor.",
            next_step="Call gscalar.keras.distribute() right after gscalar.init(...).",
        )
    framework = KerasFramework()
    gang.use(framework)
    with socket.socket() as asking:
        asking.bind(("", 0))
        addresses = gang.meet(asking.getsockname()[1])
    place = gang.place
    os.environ["TF_CONFIG"] = json.dumps({"cluster": addresses, "task": {"type": place.role, "index": place.index}})
    if not gang.serves_chief:
        gang.explain_by(lambda error: explain(run, error))
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        gang.take_signals_back()  # TensorFlow's runtime takes SIGTERM for itself when a cluster begins
        return _watched(run, framework, strategy)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if place.role is not Role.CHIEF:
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=place.role.value, task_index=place.index, protocol="grpc"
        )
        assert server is not None  # it lives as long as this frame
        gang.take_signals_back()
        gang.serve()
    servers = tf.distribute.ParameterServerStrategy(resolver)
    gang.take_signals_back()
    return _watched(run, framework, servers)


def _watched(run: Run, framework: KerasFramework, strategy: Any) -> Any:
    refuse_fit(strategy)
    framework.when_adopted = lambda model: note_outside(run, strategy, model.trainable_variables)
    return strategy


def _has_begun() -> bool:
    """Whether TensorFlow's context exists, to which a cluster can no longer be added."""
    from tensorflow.python.eager import context

    return bool(context.context()._initialized)


class AsyncSteps:
    """Steps of a script's own function on the workers of a coordinator."""

    def __init__(
        self, run: Run, coordinator: Any, function: Callable[..., Any], args: Sequence[Any], samples: int = 1
    ) -> None:
        self._run = run
        self._driver = Driver(run)
        self._ahead = StepsAhead(self._driver, coordinator, _loss_of, samples)
        self._coordinator = coordinator
        self._function = function
        self._args = tuple(args)

    def take(self, steps: int) -> Iterator[Any]:
        """Yield what the function returns for each step, until the run has taken `steps` of them."""
        state, ahead = self._run.state, self._ahead
        with self._driver.looping(total_steps=steps):
            while state.step < steps:
                while ahead.has_room and not ahead.border_due and state.step + len(ahead) < steps:
                    ahead.add(self._coordinator.schedule(self._function, args=self._args))
                yield ahead.count_oldest()
                if ahead.border_due and not ahead:
                    ahead.cross_border()
            self._driver.save_at_end()


def _loss_of(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) else result
