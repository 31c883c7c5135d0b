"""Where a real training's time goes, on two ranks of which one is late.

Times are compared with the sleeps that made them, which can only be longer than asked, and with one another.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gscalar.model import events
from gscalar.model.accounts import unpack_accounts
from gscalar.model.spans import SpanKind, unpack_collectives, unpack_spans
from gscalar.state.records import Frame, read_record

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).parent / "scripts" / "timed_training.py"
Accounts = list[dict[str, float]]  # of one rank's steps
DATA_S, LATE_S, SCRIPT_S, EVALUATION_S = 0.02, 0.15, 0.01, 0.3


def read(home: Path, rank: int) -> list[events.Event]:
    (record,) = home.glob(f"runs/*/records/a000-r{rank:05d}.rec")
    return [item.event for item in read_record(record) if isinstance(item, Frame)]


def of_kind(record: list[events.Event], kind: type[Any]) -> list[Any]:
    return [event for event in record if type(event) is kind]


def test_every_account_holds_what_it_is_for(gang: Callable[..., None], home: Path) -> None:
    gang(SCRIPT, 2, *(str(s) for s in (DATA_S, LATE_S, SCRIPT_S, EVALUATION_S)))
    records = [read(home, rank) for rank in range(2)]
    steps = [of_kind(record, events.Step) for record in records]
    accounts = [[unpack_accounts(step.accounts) for step in own] for own in steps]
    for own, shares in zip(steps, accounts, strict=True):
        check_sums(own, shares)
        check_what_the_script_did(shares)
    check_the_late_rank(accounts)
    for record, own in zip(records, steps, strict=True):
        check_the_evaluation(record, own)
    check_exchanges(*({each.step: each.rows for each in of_kind(r, events.Collectives)} for r in records))


def check_sums(steps: list[events.Step], accounts: Accounts) -> None:
    assert [step.step for step in steps] == list(range(1, 11))
    for step, shares in zip(steps, accounts, strict=True):
        assert sum(shares.values()) == pytest.approx(step.duration_s, rel=1e-12)
        assert min(shares.values()) >= 0


def check_what_the_script_did(accounts: Accounts) -> None:
    assert all(shares["data_wait"] >= DATA_S for shares in accounts)
    assert all(shares["h2d"] == 0 for shares in accounts)
    # What the script does after a step is in the next one: its pause, and the collection after step 5.
    assert all(shares["host_gap"] >= SCRIPT_S for shares in accounts[1:])
    assert [step for step, shares in enumerate(accounts, 1) if shares["gc"] > 0] == [6]
    # Every fourth step is saved.
    assert [step for step, shares in enumerate(accounts, 1) if shares["checkpoint"] > 0] == [5, 9]


def check_the_late_rank(accounts: list[Accounts]) -> None:
    """Rank 0 waits for rank 1, which waits for nobody."""
    waits = [statistics.median(shares["exposed_communication"] for shares in own) for own in accounts]
    works = [statistics.median(shares["compute"] for shares in own) for own in accounts]
    assert waits[0] > 0.8 * LATE_S
    assert waits[0] > 2 * waits[1]
    assert works[1] >= LATE_S > works[0]


def check_the_evaluation(record: list[events.Event], steps: list[events.Step]) -> None:
    """It is between two steps and in neither; each rank has one of its two batches."""
    spans = {each.step: list(unpack_spans(each.rows)) for each in of_kind(record, events.Spans)}
    found = [(step, span) for step, own in spans.items() for span in own if span.kind == SpanKind.EVALUATION]
    ((step, evaluation),) = found
    assert step == 7
    assert evaluation.duration_ns >= EVALUATION_S * 1e9
    between_ns = steps[6].time_ns - steps[5].time_ns
    assert steps[6].duration_s * 1e9 <= between_ns - 0.9 * evaluation.duration_ns
    assert sum(span.kind == SpanKind.BACKWARD for span in spans[3]) == 1


def check_exchanges(*rows: dict[int, tuple[int, ...]]) -> None:
    """Both ranks saw the same ones, each step with all bytes of the gradient."""
    seen = [
        {step: [each for each in unpack_collectives(row) if each.group == 0] for step, row in own.items()}
        for own in rows
    ]
    assert list(seen[0]) == list(seen[1]) == list(range(1, 11))
    for first, second in zip(seen[0].values(), seen[1].values(), strict=True):
        assert len(first) > 1
        assert [each[:4] for each in first] == [each[:4] for each in second]
        assert sum(each.num_bytes for each in first) == 4 * (8 * 300_000 + 300_000 + 300_000 + 1)
        assert all(each.ready_ns <= each.start_ns <= each.end_ns for each in first + second)
    sequences = [each.sequence for own in seen[0].values() for each in own]
    assert sequences == list(range(len(sequences)))
