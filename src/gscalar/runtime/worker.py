"""What a run has in this process, whoever drives the loop: record, clock, exits, ranks, and its end.

`gscalar.runtime.session.Run` drives a loop of the script's through it, and `gscalar.runtime.following.Follower`
follows the loop of another trainer. What both do at the end of a step, at a stop and at the end of the process
stands here once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from gscalar.base.errors import UserError
from gscalar.model.events import StopAcknowledged
from gscalar.model.roles import num_helpers
from gscalar.model.status import Exit
from gscalar.runtime.checkpointing import Checkpointer
from gscalar.runtime.clock_sync import start_clock_sync
from gscalar.runtime.closing import RunEnd
from gscalar.runtime.exits import ExitWatch
from gscalar.runtime.framework import Framework, Group, Tools
from gscalar.runtime.local_sums import sum_in_memory
from gscalar.runtime.opening import Opened
from gscalar.runtime.recording import Recording
from gscalar.runtime.sampling import start_sampling
from gscalar.runtime.state import RunState
from gscalar.runtime.stepping import StepResult
from gscalar.runtime.telling import Telling
from gscalar.runtime.timing import Timing

Compose = Callable[[Sequence[Any]], Framework]


def _nothing_written() -> None:
    """Wait for no checkpoint: none can be under way."""


class Worker:
    """One worker's open run. Owns its record, its exits and its place among the ranks.

    Who trains sets `settle`, which waits until its checkpoints are durable, `conclude`, which says its last words
    and returns the digests of what was trained, and `explain`, which may say more of an exception.
    """

    def __init__(self, opened: Opened, compose: Compose) -> None:
        self.opened = opened
        self.spec = opened.resolved.spec
        self.state = RunState()
        self.timing = Timing()
        self.recording = Recording(opened.writer, opened.launch.rank)
        self.checkpoint_asked = False
        self.distributed = False  # whether the script has taken its place in a gang with other roles
        self.settle: Callable[[], None] = _nothing_written
        self.conclude: Callable[[], dict[str, str]] = dict
        self.explain: Callable[[BaseException], None] = lambda error: None
        self._compose = compose
        self._framework: Framework | None = None
        self._group: Group | None = None
        self._end = RunEnd(opened)
        self.before_close(start_sampling(opened))
        self._telling = Telling(opened)
        self._telling.begun()
        self.recording.on_warning = self._telling.warn
        self.exits = ExitWatch(on_failure=self.failed, on_exit=self._at_exit, on_interrupt=self._telling.stopping)
        self.exits.install()

    @property
    def closed(self) -> bool:
        """Whether the run has ended for this worker."""
        return self._end.closed

    @property
    def status(self) -> str:
        """How the run stands: `running`, or how it has ended as far as this worker knows."""
        return self._end.status

    def before_close(self, act: Callable[[], None]) -> None:
        """Call this once when the run ends here, however it ends, while the record is still open."""
        self._end.before_close.append(act)

    def check_distributed(self) -> None:
        """Raise where the plan needs a place that the script has not taken.

        Raises:
            UserError: `not-distributed`.
        """
        if num_helpers(self.spec) and not self.distributed:
            raise UserError(
                code="not-distributed",
                what="The plan trains with parameter servers, and the script has not asked for its part in that.",
                value=f"plan.sync.kind={self.spec.plan.sync.kind}",
                next_step=(
                    "Set plan.sync.kind=allreduce. Parameter servers are TensorFlow's: for a loop of your own, or "
                    "tf_keras's model.fit, in the scope of strategy = gscalar.keras.distribute(), called first."
                ),
            )

    @property
    def device(self) -> Any:
        """The framework's device of this worker; None before one of its objects was seen."""
        return self._framework.tools().device(self.opened.launch) if self._framework is not None else None

    @property
    def tools(self) -> Tools:
        """The small functions of the framework in use."""
        return self.framework_for(()).tools()

    def framework_for(self, objects: Sequence[Any]) -> Framework:
        """Return the framework in use: the first one whose objects were seen."""
        if self._framework is None:
            self.use(self._compose(objects))
        assert self._framework is not None
        return self._framework

    def use(self, framework: Framework) -> None:
        """Train with this framework, unless one is in use."""
        if self._framework is not None:
            return
        self._framework = framework
        tools = framework.tools()
        self._end.is_peer_loss = tools.is_peer_loss
        self.recording.scalar = tools.scalar
        self.recording.on_host = getattr(self.device, "type", "cpu") == "cpu"

    def connected(self) -> Group:
        """Return the ranks of this launch; the first call is a collective."""
        if self._group is None:
            # Longer than the supervisor's patience: it names the rank that hangs, a time-out only the victims.
            timeout_s = 2 * self.spec.hang_after_s
            launch = self.opened.launch
            connected = self.framework_for(()).connect(launch, timeout_s)
            self._group = sum_in_memory(connected, launch, timeout_s)
            self.before_close(start_clock_sync(self._group, launch, self.recording.writer))
        return self._group

    def checkpointer(self) -> Checkpointer:
        """Return what writes this run's checkpoints; from now on the run's end waits for it."""
        opened, tools = self.opened, self.tools
        checkpointer = Checkpointer(
            opened.folder.checkpoints,
            self.spec.checkpoint,
            self.recording.writer,
            facts={"run": opened.run_id, "attempt": opened.attempt, "world": opened.launch.world},
            write_arrays=tools.write_arrays,
            read_arrays=tools.read_arrays,
        )
        self.settle = checkpointer.wait
        return checkpointer

    def step_over(self, result: StepResult, *, epoch: int, total_steps: int) -> None:
        """Cut the clock at the end of `state.step`, count what the ranks did in it, and record it."""
        timed = self.timing.cut()
        self.state.tokens += result.agreement.tokens
        self.state.samples += result.agreement.samples
        self._end.step = self.state.step
        self.recording.step(result, timed, step=self.state.step, epoch=epoch, total_steps=total_steps)

    def stop(self) -> NoReturn:
        """End resumable: the checkpoint of this step is durable on all ranks."""
        self.recording.write_waiting()
        self.recording.emit(StopAcknowledged(time.time_ns(), self.state.step))
        self._close(self._end.stop)
        raise SystemExit(Exit.INTERRUPTED if self.exits.interrupted else Exit.RESUMABLE)

    def finish(self) -> None:
        """End the run in order; nothing where it has ended."""
        if self.closed:
            return
        self.settle()
        if self._end.failed:  # inside `with`, and the script went on
            self._close(lambda: self._end.abandon(1))
            return
        self.recording.write_waiting()
        digests = self.conclude()
        self._close(lambda: self._end.complete(self.state, digests))

    def failed(self, error: BaseException) -> None:
        """Record an exception that leaves the script."""
        if not (self._end.failed or self.closed):
            self.explain(error)
        self._end.fail(error)
        self.settle()

    def _close(self, end: Callable[[], None]) -> None:
        self.timing.stop()
        self.recording.stop_flushing()
        end()
        self._telling.ended(self._end.status, self.state.step)
        self.exits.remove()
        if self._group is not None:
            self._group.close()

    def _at_exit(self, exit_code: int) -> None:
        if exit_code == 0 and not self._end.failed:
            self.finish()
            return
        self.settle()
        self.recording.stop_flushing()
        if self.exits.terminated:
            self._end.stop()
        else:
            self._end.abandon(exit_code)
        self._telling.ended(self._end.status, self.state.step)
