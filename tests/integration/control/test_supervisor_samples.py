"""The supervisor samples the host and its workers, and is not delayed by it."""

from __future__ import annotations

from gscalar.model import events
from gscalar.testing.processes import wait_until

LIMIT_S = 60.0


def test_the_supervisors_record_has_the_host_and_each_rank_of_each_attempt(begin) -> None:
    run = begin("init", "pace=0.05", "forever", workers=2)

    def ranks() -> set[int]:
        return {sample.rank for sample in run.events(events.Hardware)}

    wait_until(lambda: ranks() == {-1, 0, 1}, LIMIT_S, "samples of the host and of both ranks")
    assert [event for rank in (0, 1) for event in run.events(events.Hardware, file=f"a000-r{rank:05d}.rec")] == []
    run.process.terminate()
    run.wait()
    ended = run.events(events.AttemptEnded)
    assert len(ended) == 1
    assert all(sample.time_ns <= ended[0].time_ns for sample in run.events(events.Hardware))
