"""The last events of a worker's record, for every way a run can end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gscalar.model import events
from gscalar.model.parsing import load_environment
from gscalar.runtime.closing import RunEnd
from gscalar.runtime.launch import Launch
from gscalar.runtime.opening import Opened
from gscalar.runtime.state import RunState
from gscalar.state.home import RunFolder


class Kept:
    """A record writer that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.dropped = 0

    def emit(self, event: events.Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.events.append("closed")


Make = Callable[..., tuple[RunEnd, Kept]]


@pytest.fixture
def ending(tmp_path: Path) -> Make:
    def make(rank: int = 0, *, supervised: bool = False, step: int = 4) -> tuple[RunEnd, Kept]:
        kept, folder = Kept(), RunFolder(tmp_path / "run")
        folder.create()
        launch = Launch(launcher="torchrun", identity="test", rank=rank, world=2, local_world=2, local_rank=rank)
        opened = Opened(
            run_id="run", gang=launch, launch=launch, folder=folder, resolved=load_environment({}), name="run",
            writer=kept, attempt=3, supervised=supervised,  # type: ignore[arg-type]
        )  # fmt: skip
        end = RunEnd(opened)
        end.step = step
        return end, kept

    return make


def told(kept: Kept) -> list[Any]:
    """Return the events as short words."""
    words: dict[type, Callable[[Any], Any]] = {
        events.AttemptEnded: lambda event: (event.attempt, event.outcome),
        events.RunEnded: lambda event: event.status,
        events.Failure: lambda event: (event.failure_class, event.kind),
        events.Finished: lambda event: "finished",
    }
    return [event if isinstance(event, str) else words[type(event)](event) for event in kept.events]


def raises(error: BaseException, exit_code: int = 1) -> Callable[[RunEnd], None]:
    def call(end: RunEnd) -> None:
        end.fail(error)
        end.abandon(exit_code)

    return call


FAILED: list[Any] = [(3, "failed"), "failed"]
WAYS: dict[str, tuple[Callable[[RunEnd], None], list[Any], list[Any]]] = {
    # what happens: (calls, what every worker tells, what rank 0 adds where nobody supervises)
    "all is done": (lambda end: end.complete(RunState(), {}), ["finished"], [(3, "completed"), "completed"]),
    "it was asked to stop": (lambda end: end.stop(), [], [(3, "stopped"), "interrupted"]),
    "an exception": (raises(ValueError("x")), [("user_error", "ValueError")], FAILED),
    "no memory": (raises(MemoryError("x")), [("out_of_memory", "MemoryError")], FAILED),
    "Ctrl-C": (raises(KeyboardInterrupt(), 130), [], [(3, "stopped"), "interrupted"]),
    "a bad exit code": (lambda end: end.abandon(3), [("user_error", "SystemExit")], FAILED),
}


@pytest.mark.parametrize("case", WAYS)
def test_every_end_is_told_by_who_may_tell_it(case: str, ending: Make) -> None:
    call, every_worker, rank_0 = WAYS[case]
    for rank, supervised, want in (
        (0, False, [*every_worker, *rank_0]),
        (1, False, every_worker),
        (0, True, every_worker),
    ):
        end, kept = ending(rank, supervised=supervised)
        call(end)
        assert told(kept) == [*want, "closed"], (rank, supervised)
        assert end.closed


def test_a_cancelled_script_alone_is_cancelled_and_not_interrupted(ending: Make, tmp_path: Path) -> None:
    end, kept = ending()
    (tmp_path / "run" / "control" / "cancel").touch()
    end.stop()
    assert told(kept) == [(3, "stopped"), "cancelled", "closed"]


def test_the_failure_says_where_what_and_the_traceback(ending: Make) -> None:
    end, kept = ending(1, step=9)
    try:
        raise ValueError("bad batch 7")
    except ValueError as error:
        end.fail(error)
    (failure,) = kept.events
    assert (failure.rank, failure.step, failure.message, failure.secondary) == (1, 9, "bad batch 7", False)
    assert "test_closing.py" in failure.traceback
    assert failure.traceback.rstrip().endswith("ValueError: bad batch 7")


def test_a_failure_that_only_follows_from_another_rank_says_so(ending: Make) -> None:
    end, kept = ending(1)
    end.is_peer_loss = lambda error: "closed by peer" in str(error)
    end.fail(RuntimeError("Connection closed by peer"))
    assert kept.events[0].secondary


def test_the_attempts_end_carries_the_failure(ending: Make) -> None:
    end, kept = ending()
    end.fail(ValueError("bad"))
    ended = next(event for event in kept.events if isinstance(event, events.AttemptEnded))
    assert ended.failure is not None
    assert (ended.failure["kind"], ended.failure["message"], ended.failure["rank"]) == ("ValueError", "bad", 0)


def test_only_the_first_failure_and_only_one_end_are_told(ending: Make) -> None:
    end, kept = ending()
    end.fail(ValueError("first"))
    end.fail(RuntimeError("second"))
    end.abandon(1)
    end.abandon(1)
    end.stop()
    assert told(kept) == [("user_error", "ValueError"), (3, "failed"), "failed", "closed"]


def test_the_digests_and_counters_are_in_the_end(ending: Make) -> None:
    end, kept = ending()
    state = RunState()
    state.step, state.tokens, state.samples = 5, 50.0, 20.0
    end.complete(state, {"weights": "ab"})
    finished = kept.events[0]
    assert (finished.step, finished.tokens, finished.samples, finished.digests) == (5, 50.0, 20.0, {"weights": "ab"})


def test_what_a_full_disk_took_is_said_on_stderr(ending: Make, capsys: pytest.CaptureFixture[str]) -> None:
    end, kept = ending()
    kept.dropped = 3
    end.stop()
    assert "3 events of rank 0 could not be recorded" in capsys.readouterr().err
