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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import tensorflow as tf

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.adapter import KerasFramework
from gscalar.frameworks.keras.applied import Applied
from gscalar.model.roles import Role
from gscalar.runtime.driving import Driver
from gscalar.runtime.gang import Gang
from gscalar.runtime.session import Run

_PER_WORKER: Final = 2  # steps that a worker is given ahead, so that it never waits for the chief


def strategy_of(run: Run) -> Any:
    """Return the strategy that the run's plan names, in the processes that run its loop; others serve and end here.

    Raises:
        UserError: `one-worker`, `distribute-late`.
    """
    run._worker.use(KerasFramework())
    gang = Gang(run)
    if run._worker.distributed or (not gang.serves_chief and tf.executing_eagerly() and _has_begun()):
        raise UserError(
            code="distribute-late",
            what="A strategy must be asked for once, and before TensorFlow makes its first tensor.",
            next_step="Call gscalar.keras.distribute() right after gscalar.init(...).",
        )
    with socket.socket() as asking:
        asking.bind(("", 0))
        addresses = gang.meet(asking.getsockname()[1])
    place = gang.place
    os.environ["TF_CONFIG"] = json.dumps({"cluster": addresses, "task": {"type": place.role, "index": place.index}})
    if not gang.serves_chief:
        run._worker.explain = lambda error: explain(run, error)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        run._worker.exits.take_back()  # TensorFlow's runtime takes SIGTERM for itself when a cluster begins
        return strategy
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if place.role is not Role.CHIEF:
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=place.role.value, task_index=place.index, protocol="grpc"
        )
        assert server is not None  # it lives as long as this frame
        run._worker.exits.take_back()
        gang.serve()
    servers = tf.distribute.ParameterServerStrategy(resolver)
    run._worker.exits.take_back()
    return servers


def explain(run: Run, error: BaseException) -> None:
    """Say what a fit of Keras 3 under a strategy of several workers fails by: it comes before any callback."""
    if isinstance(error, ValueError) and "PerReplica" in str(error):
        run.note(
            "Keras 3's model.fit does not work under a strategy of several workers. Build the model outside "
            "strategy.scope(): with gscalar.keras.callback() the workers exchange gradients anyway."
        )


def _has_begun() -> bool:
    """Whether TensorFlow's context exists, to which a cluster can no longer be added."""
    from tensorflow.python.eager import context

    return bool(context.context()._initialized)


class AsyncSteps:
    """Steps that a coordinator gives out to workers, taken in the order in which they were given out.

    A few are always under way. Before a checkpoint or a stop no new one is given out until none is: what is saved
    then holds all steps that are counted, and no others.
    """

    def __init__(
        self, run: Run, coordinator: Any, function: Callable[..., Any], args: Sequence[Any], samples: int = 1
    ) -> None:
        self._run = run
        self._driver = Driver(run)
        self._coordinator = coordinator
        self._function = function
        self._args = tuple(args)
        self._samples = samples
        workers = coordinator.strategy.extended._num_workers
        self._most_ahead = _PER_WORKER * workers
        self._ahead: deque[Any] = deque()

    def take(self, steps: int) -> Iterator[Any]:
        """Yield what the function returns for each step, until the run has taken `steps` of them."""
        run, driver = self._run, self._driver
        with driver.looping():
            draining = False
            while run.state.step < steps:
                while not draining and len(self._ahead) < min(self._most_ahead, steps - run.state.step):
                    self._ahead.append(self._coordinator.schedule(self._function, args=self._args))
                with driver.waiting_for_others():
                    value = self._ahead.popleft().fetch()
                driver.expect(self._samples)
                run.step(Applied(value[0] if isinstance(value, tuple | list) else value))
                yield value
                draining = draining or driver.border_wanted
                if draining and not self._ahead:
                    driver.cross_border()
                    draining = False
            driver.save_at_end()
