"""The ledger of collectives: order, sequence, when a transport can have begun, what was waited for."""

from __future__ import annotations

import pytest

from gscalar.model.spans import Collective, CollectiveKind
from gscalar.observation.collectives import GRADIENTS, HOST_SUMS, CollectiveLedger

ALL_REDUCE = CollectiveKind.ALL_REDUCE


class Times:
    """A clock that gives the times it was made of, one after the other."""

    def __init__(self, *times_ns: int) -> None:
        self._times = iter(times_ns)

    def __call__(self) -> int:
        return next(self._times)


def test_a_collective_begins_when_it_is_ready_and_the_one_before_is_over() -> None:
    ledger = CollectiveLedger(Times(10, 20, 45, 60))
    first = ledger.ready(ALL_REDUCE, GRADIENTS, 100)
    second = ledger.ready(ALL_REDUCE, GRADIENTS, 200)
    first.done()
    second.done()
    want = [Collective(ALL_REDUCE, GRADIENTS, 0, 100, 5, 5, 40), Collective(ALL_REDUCE, GRADIENTS, 1, 200, 15, 40, 55)]
    assert ledger.take(origin_ns=5) == want


def test_groups_count_and_queue_by_themselves() -> None:
    ledger = CollectiveLedger(Times(1, 2, 3, 90, 91, 92))
    opened = [ledger.ready(ALL_REDUCE, group, 8) for group in (GRADIENTS, HOST_SUMS, GRADIENTS)]
    for each in opened:
        each.done()
    got = [(each.group, each.sequence, each.start_ns) for each in ledger.take(0)]
    assert got == [(GRADIENTS, 0, 1), (HOST_SUMS, 0, 2), (GRADIENTS, 1, 90)]


def test_what_is_not_over_is_taken_with_a_later_step() -> None:
    ledger = CollectiveLedger(Times(1, 2, 3, 4))
    first = ledger.ready(ALL_REDUCE, GRADIENTS, 8)
    ledger.ready(ALL_REDUCE, GRADIENTS, 8).done()
    assert [each.sequence for each in ledger.take(0)] == [1]
    first.done()
    assert [each.sequence for each in ledger.take(0)] == [0]
    assert ledger.take(0) == []


def test_one_that_ended_out_of_order_never_starts_after_its_end() -> None:
    ledger = CollectiveLedger(Times(1, 2, 3, 50))
    first, second = ledger.ready(ALL_REDUCE, GRADIENTS, 8), ledger.ready(ALL_REDUCE, GRADIENTS, 8)
    second.done()
    first.done()
    assert all(each.ready_ns <= each.start_ns <= each.end_ns for each in ledger.take(0))


@pytest.mark.parametrize(
    ("groups", "want"),
    [((GRADIENTS, GRADIENTS), (2, 4)), ((HOST_SUMS, HOST_SUMS), None), ((GRADIENTS, HOST_SUMS), (1, 3)), ((), None)],
    ids=["two buckets", "sums of the host", "one bucket", "nothing"],
)
def test_gradients_are_waited_for_from_the_last_bucket_on(groups: tuple[int, ...], want: object) -> None:
    ledger = CollectiveLedger(Times(1, 2, 3, 4))
    for each in [ledger.ready(ALL_REDUCE, group, 8) for group in groups]:
        each.done()
    assert ledger.exposed() == want
