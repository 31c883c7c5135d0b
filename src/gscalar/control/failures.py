"""What went wrong, and where: from exits, records and logs to one failure with one class.

When one rank fails, the others fail a moment later, because their collectives break. The root is the
earliest failure that is no such consequence. The classes:

    user_error      an exception left the script, or it chose to exit with a code
    killed          a signal ended the process: somebody's SIGKILL, or a crash in native code
    out_of_memory   the kernel's out-of-memory killer, MemoryError, or a device out of memory
    hung            no heartbeat (see heartbeats.py)
    lost            a worker vanished, never started, or the workers lost one another
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from gscalar.control.engine import WorkerExit
from gscalar.control.heartbeats import Hang
from gscalar.control.tracebacks import find_error, last_lines
from gscalar.model.events import Failure
from gscalar.model.status import Exit, FailureClass

_BROKEN_COLLECTIVE: Final = re.compile(
    r"Connection (closed|reset) by (peer|remote peer)|\[.*gloo/|gloo::|NCCL|ncclRemoteError|recvValue failed"
    r"|Broken pipe|Socket Timeout|Collective ops is aborted by"
    r"|Timed out waiting \d+ms|monitoredBarrier|wait timeout after \d+ms",
)
# Of torch.distributed, and TensorFlow's where a process of its cluster is gone.
_BROKEN_KINDS: Final = frozenset(
    {"DistBackendError", "DistNetworkError", "DistStoreError", "UnavailableError", "AbortedError"}
)
_PORT_TAKEN: Final = re.compile(r"EADDRINUSE|[Aa]ddress already in use|Could not start gRPC server")
_MEMORY_KINDS: Final = frozenset({"MemoryError", "OutOfMemoryError", "ResourceExhaustedError"})
_MEMORY_TEXT: Final = re.compile(r"out of memory|can't allocate memory|Cannot allocate memory", re.IGNORECASE)
_CHILD_KILLED: Final = re.compile(r"killed by signal: Killed")
# How a shell reports the signal that ended what it ran.
_SHELL_SIGNALS: Final = {
    128 + number: number
    for number in (
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEvidence:
    """What is known of one rank when an attempt has ended or is about to be ended."""

    rank: int
    exit: WorkerExit | None = None  # None: alive; only exits that the supervisor did not cause
    failures: tuple[Failure, ...] = ()  # of the rank's record
    started: bool = False  # `init` was called
    step: int = 0
    log_tail: str = ""


def classify(ranks: Sequence[RankEvidence], hang: Hang | None = None, *, now_ns: int = 0) -> Failure | None:
    """Return the root failure, or None where nothing failed."""
    if hang is not None:
        return _hung(hang, now_ns)
    failures = [failure for evidence in ranks if (failure := _own_failure(evidence)) is not None]
    if not failures:
        return None
    # A failure without a time of its own keeps the order of ranks.
    root = min(failures, key=lambda failure: (failure.secondary, failure.time_ns, failure.rank))
    if root.secondary and root.failure_class == FailureClass.USER_ERROR:
        # All the ranks say is that they lost somebody.
        return structs.replace(root, failure_class=FailureClass.LOST)
    return root


def _own_failure(evidence: RankEvidence) -> Failure | None:
    worker_exit = evidence.exit
    signum = None
    if worker_exit is not None:
        signum = worker_exit.signum or _SHELL_SIGNALS.get(worker_exit.code or 0)
    recorded = min(evidence.failures, key=lambda failure: (failure.secondary, failure.time_ns), default=None)
    # A worker says SystemExit where it obeyed a signal outside its training loop.
    if recorded is not None and not (recorded.kind == "SystemExit" and signum is not None):
        if recorded.kind == "SystemExit" and not recorded.traceback:
            recorded = structs.replace(recorded, traceback=last_lines(evidence.log_tail))
        return _refine(recorded, worker_exit)
    if worker_exit is None or worker_exit.code in (Exit.DONE, Exit.RESUMABLE):
        return None
    if signum is not None:
        return _signalled(evidence, worker_exit, signum)
    if worker_exit.code is None:
        return _failure(
            evidence,
            worker_exit,
            FailureClass.LOST,
            kind="vanished",
            message=worker_exit.detail or "the worker vanished",
        )
    return _refine(_exited(evidence, worker_exit, worker_exit.code), worker_exit)


def _exited(evidence: RankEvidence, worker_exit: WorkerExit, code: int) -> Failure:
    found = find_error(evidence.log_tail)
    if found is None:
        return _failure(
            evidence,
            worker_exit,
            FailureClass.USER_ERROR,
            kind="exit",
            message=f"the script ended with exit code {code}",
            traceback=last_lines(evidence.log_tail),
        )
    return _failure(
        evidence,
        worker_exit,
        FailureClass.USER_ERROR,
        kind=found.kind,
        message=found.message,
        traceback=found.traceback,
    )


def signal_name(signum: int) -> str:
    """Return SIGKILL for 9; `signal 40` for one without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def _signalled(evidence: RankEvidence, worker_exit: WorkerExit, signum: int) -> Failure:
    name = signal_name(signum)
    if signum == signal.SIGKILL and worker_exit.oom_killed:
        return _failure(
            evidence,
            worker_exit,
            FailureClass.OUT_OF_MEMORY,
            kind=name,
            message="the kernel killed the process for lack of memory",
        )
    crashed = signum in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
    text = f"native code crashed with {name}" if crashed else f"somebody killed the process with {name}"
    tail = last_lines(evidence.log_tail) if crashed else ""
    return _failure(
        evidence,
        worker_exit,
        FailureClass.KILLED,
        kind=name,
        message=text,
        traceback=tail,
        # torch aborts a process whose collective breaks in a background thread.
        secondary=signum == signal.SIGABRT and _BROKEN_COLLECTIVE.search(tail) is not None,
    )


def _refine(failure: Failure, worker_exit: WorkerExit | None) -> Failure:
    """Give an exception its class: not all that leaves a script is the script's fault."""
    text = failure.message
    if (
        _PORT_TAKEN.search(text)
        and failure.kind in {*_BROKEN_KINDS, "OSError", "RuntimeError", "UnknownError"}
        and not failure.step
    ):
        return structs.replace(failure, failure_class=FailureClass.LOST)
    if failure.kind in _MEMORY_KINDS or (
        failure.kind in ("RuntimeError", "OSError", "AcceleratorError") and _MEMORY_TEXT.search(text)
    ):
        return structs.replace(failure, failure_class=FailureClass.OUT_OF_MEMORY)
    if _CHILD_KILLED.search(text):
        oom = worker_exit is not None and worker_exit.oom_killed
        return structs.replace(failure, failure_class=FailureClass.OUT_OF_MEMORY if oom else FailureClass.KILLED)
    if failure.kind in _BROKEN_KINDS or _BROKEN_COLLECTIVE.search(text):
        return structs.replace(failure, secondary=True)
    return failure


def _failure(
    evidence: RankEvidence,
    worker_exit: WorkerExit,
    failure_class: FailureClass,
    *,
    kind: str,
    message: str,
    traceback: str = "",
    secondary: bool = False,
) -> Failure:
    return Failure(
        time_ns=worker_exit.time_ns,
        rank=evidence.rank,
        step=evidence.step,
        failure_class=failure_class,
        kind=kind,
        message=message,
        traceback=traceback,
        secondary=secondary,
    )


def _hung(hang: Hang, now_ns: int) -> Failure:
    return Failure(
        time_ns=now_ns,
        rank=hang.rank,
        step=hang.step,
        failure_class=FailureClass.HUNG,
        kind="hang",
        message=hang.describe(),
    )
