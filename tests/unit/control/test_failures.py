"""Which failure is the root, and of which class."""

from __future__ import annotations

import signal

import pytest

from gscalar.control.engine import WorkerExit
from gscalar.control.failures import RankEvidence, classify
from gscalar.control.heartbeats import Hang
from gscalar.model.events import Failure

GLOO = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3"
TRACE = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    f()\n'


def died(rank: int, signum: int, *, at: int = 0, oom: bool = False, log: str = "") -> RankEvidence:
    worker_exit = WorkerExit(rank=rank, time_ns=at, signum=signum, oom_killed=oom)
    return RankEvidence(rank=rank, exit=worker_exit, started=True, step=7, log_tail=log)


def left(rank: int, code: int, *, at: int = 0, log: str = "", failures: tuple[Failure, ...] = ()) -> RankEvidence:
    worker_exit = WorkerExit(rank=rank, time_ns=at, code=code)
    return RankEvidence(rank=rank, exit=worker_exit, step=7, log_tail=log, failures=failures)


def recorded(rank: int, kind: str, message: str, *, at: int = 0, secondary: bool = False) -> RankEvidence:
    failure = Failure(at, rank, 7, "user_error", kind, message, TRACE + f"{kind}: {message}\n", secondary)
    return RankEvidence(rank=rank, failures=(failure,), started=True, step=7)


def alive(rank: int) -> RankEvidence:
    return RankEvidence(rank=rank, started=True, step=7)


PORT_TAKEN = RankEvidence(
    rank=0,
    exit=WorkerExit(rank=0, time_ns=1, code=1),
    log_tail=f"{TRACE}torch.distributed.DistNetworkError: port: 20111, EADDRINUSE\n",
)
VANISHED = RankEvidence(rank=0, exit=WorkerExit(rank=0, time_ns=1, detail="the keeper died"))

# sentence: (evidence, (rank, class, kind))
ROOTS = {
    "a SIGKILL is somebody's": ([died(0, signal.SIGKILL)], (0, "killed", "SIGKILL")),
    "a SIGKILL while the kernel counted an out-of-memory kill is the kernel's": (
        [died(0, signal.SIGKILL, oom=True)],
        (0, "out_of_memory", "SIGKILL"),
    ),
    "a segmentation fault is a kill": ([died(0, signal.SIGSEGV)], (0, "killed", "SIGSEGV")),
    "a realtime signal has no name": ([died(0, 40)], (0, "killed", "signal 40")),
    "a shell's 137 is a SIGKILL": ([left(0, 137)], (0, "killed", "SIGKILL")),
    "a worker that says 143 obeyed a SIGTERM": (
        [left(0, 143, failures=recorded(0, "SystemExit", "exit code 143").failures)],
        (0, "killed", "SIGTERM"),
    ),
    "a killed rank is the root, and what it does to the others is not": (
        [recorded(0, "RuntimeError", GLOO, at=9), died(1, signal.SIGKILL, at=10)],
        (1, "killed", "SIGKILL"),
    ),
    "an abort by a broken collective is no root": (
        [died(0, signal.SIGABRT, at=1, log=f"what(): {GLOO}\n"), died(1, signal.SIGKILL, at=2)],
        (1, "killed", "SIGKILL"),
    ),
    "of two roots the earlier one counts": (
        [recorded(0, "ValueError", "b", at=5), recorded(1, "KeyError", "a", at=4)],
        (1, "user_error", "KeyError"),
    ),
    "a recorded exception counts before the process has ended": (
        [alive(0), recorded(1, "ValueError", "x")],
        (1, "user_error", "ValueError"),
    ),
    "an exception outside init is read from the log": (
        [left(0, 1, log=f"epoch 1\n{TRACE}ModuleNotFoundError: No module named 'x'\n")],
        (0, "user_error", "ModuleNotFoundError"),
    ),
    "a broken collective in a log is no root": (
        [left(0, 1, at=1, log=f"{TRACE}RuntimeError: {GLOO}\n"), left(1, 1, at=2, log=f"{TRACE}KeyError: 'x'\n")],
        (1, "user_error", "KeyError"),
    ),
    "an exit code without a traceback is the script's": ([left(0, 3, log="usage: ...\n")], (0, "user_error", "exit")),
    "a MemoryError is out of memory": ([recorded(0, "MemoryError", "")], (0, "out_of_memory", "MemoryError")),
    "a device out of memory is out of memory": (
        [recorded(0, "OutOfMemoryError", "CUDA out of memory.")],
        (0, "out_of_memory", "OutOfMemoryError"),
    ),
    "an allocator's RuntimeError is out of memory": (
        [recorded(0, "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")],
        (0, "out_of_memory", "RuntimeError"),
    ),
    "a user's error that speaks of memory is the user's": (
        [recorded(0, "ValueError", "my cache is out of memory")],
        (0, "user_error", "ValueError"),
    ),
    "a killed data worker was killed": (
        [recorded(0, "RuntimeError", "DataLoader worker (pid 3) is killed by signal: Killed. ")],
        (0, "killed", "RuntimeError"),
    ),
    "a killed data worker while the kernel counted was out of memory": (
        [
            RankEvidence(
                rank=0,
                exit=WorkerExit(rank=0, time_ns=2, code=1, oom_killed=True),
                failures=recorded(0, "RuntimeError", "DataLoader worker is killed by signal: Killed.").failures,
            )
        ],
        (0, "out_of_memory", "RuntimeError"),
    ),
    "only broken collectives: the workers lost one another": (
        [recorded(0, "DistBackendError", "x", at=3), recorded(1, "RuntimeError", GLOO, at=2)],
        (1, "lost", "RuntimeError"),
    ),
    "what TensorFlow says of a worker that is gone is no root": (
        [recorded(0, "UnavailableError", "Graph execution error", at=9), died(1, signal.SIGKILL, at=10)],
        (1, "killed", "SIGKILL"),
    ),
    "a port that was taken before TensorFlow could open it is nobody's error": (
        [
            RankEvidence(
                rank=0, failures=(Failure(1, 0, 0, "user_error", "UnknownError", "Could not start gRPC server"),)
            )
        ],
        (0, "lost", "UnknownError"),
    ),
    "a port that is taken is nobody's error": ([PORT_TAKEN], (0, "lost", "DistNetworkError")),
    "a worker that vanished is lost": ([VANISHED], (0, "lost", "vanished")),
}


@pytest.mark.parametrize("sentence", ROOTS)
def test_the_root(sentence: str) -> None:
    evidence, want = ROOTS[sentence]
    got = classify(evidence)
    assert got is not None
    assert (got.rank, got.failure_class, got.kind) == want


NO_FAILURES = {
    "nobody has ended": [alive(0), alive(1)],
    "one rank is done and the other goes on": [left(0, 0), alive(1)],
    "a worker stopped resumable": [left(0, 75), left(1, 0)],
}


@pytest.mark.parametrize("sentence", NO_FAILURES)
def test_nothing_failed(sentence: str) -> None:
    assert classify(NO_FAILURES[sentence]) is None


def test_a_hang_counts_more_than_what_it_did_to_the_others() -> None:
    hang = Hang(rank=2, step=7, silent_s=30.4, stopped=True, victims=(0, 1))
    got = classify([recorded(0, "RuntimeError", GLOO)], hang, now_ns=5)
    assert got is not None
    assert (got.rank, got.step, got.failure_class, got.time_ns) == (2, 7, "hung", 5)
    assert got.message == (
        "rank 2 gave no heartbeat for 30 s after step 7; its process is stopped (SIGSTOP or a debugger); "
        "ranks 0, 1 were waiting for it"
    )


def test_the_last_lines_of_the_log_stand_in_where_there_is_no_traceback() -> None:
    got = classify([left(0, 2, log="loading\n\nusage: train.py [-h]\ntrain.py: error: no --lr\n")])
    assert got is not None
    assert got.traceback.endswith("train.py: error: no --lr")


def test_an_exit_after_init_is_shown_with_the_last_lines_too() -> None:
    failure = Failure(1, 0, 7, "user_error", "SystemExit", "the script ended with exit code 2")
    got = classify([left(0, 2, log="train.py: error: no --lr\n", failures=(failure,))])
    assert got is not None
    assert (got.kind, got.traceback) == ("SystemExit", "train.py: error: no --lr")
