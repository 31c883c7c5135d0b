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

    for own, of_steps in zip(steps, accounts, strict=True):
        assert [step.step for step in own] == list(range(1, 11))
        for step, shares in zip(own, of_steps, strict=True):
            assert sum(shares.values()) == pytest.approx(step.duration_s, rel=1e-12)
            assert min(shares.values()) >= 0
            assert shares["data_wait"] >= DATA_S
            assert shares["h2d"] == 0
        # The script's pause after a step is in the next one.
        assert all(shares["host_gap"] >= SCRIPT_S for shares in of_steps[1:])
        # The collection that the script asked for after step 5.
        assert all((shares["gc"] > 0) == (step.step == 6) for step, shares in zip(own, of_steps, strict=True))
        saved = [step.step for step, shares in zip(own, of_steps, strict=True) if shares["checkpoint"] > 0]
        assert saved == [5, 9]

    # Rank 0 waits for rank 1, which waits for nobody.
    waits = [statistics.median(shares["exposed_communication"] for shares in own) for own in accounts]
    works = [statistics.median(shares["compute"] for shares in own) for own in accounts]
    assert waits[0] > 0.8 * LATE_S
    assert waits[0] > 2 * waits[1]
    assert works[1] >= LATE_S > works[0]

    # An evaluation is between two steps and in neither.
    for record, own in zip(records, steps, strict=True):
        spans = {each.step: list(unpack_spans(each.rows)) for each in of_kind(record, events.Spans)}
        found = [(number, span) for number, of in spans.items() for span in of if span.kind == SpanKind.EVALUATION]
        ((number, evaluation),) = found
        assert number == 7
        num_batches = 1  # of the two, each rank has one
        assert evaluation.duration_ns >= num_batches * EVALUATION_S * 1e9
        between_ns = own[6].time_ns - own[5].time_ns
        assert own[6].duration_s * 1e9 <= between_ns - 0.9 * evaluation.duration_ns
        backward = [span for span in spans[3] if span.kind == SpanKind.BACKWARD]
        assert len(backward) == 1
        assert all(span.start_ns >= -1000 for span in spans[3] if span.kind != SpanKind.HOST)

    # Both ranks saw the same exchanges, each with all bytes of the gradient.
    rows = [
        {each.step: list(unpack_collectives(each.rows)) for each in of_kind(r, events.Collectives)} for r in records
    ]
    assert list(rows[0]) == list(rows[1]) == list(range(1, 11))
    for step in rows[0]:
        first, second = ([c for c in own[step] if c.group == 0] for own in rows)
        assert len(first) > 1
        assert [c[:4] for c in first] == [c[:4] for c in second]
        assert sum(c.num_bytes for c in first) == 4 * (8 * 300_000 + 300_000 + 300_000 + 1)
        assert all(c.ready_ns <= c.start_ns <= c.end_ns for c in first + second)
    sequences = [c.sequence for of_step in rows[0].values() for c in of_step if c.group == 0]
    assert sequences == list(range(len(sequences)))
