from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.base.errors import EnvironmentProblem, UserError
from gscalar.importers.operations import ACTIVITIES, COLUMNS, read_operations
from gscalar.model.timeline import NONE, Activity, Lane, Signal, StepTimeline
from gscalar.testing import pipelines
from gscalar.testing.pipelines import Row, draw_pipeline, rows_timeline, simulate_pipeline, write_operations

# The signals that any diagnosis of a table has to do without.
UNKNOWN = {Signal.DATA_WAIT, Signal.QUEUE, Signal.LAUNCHES, Signal.WORK, Signal.MEMORY_BANDWIDTH, Signal.CHECKPOINTS}


def rows(**options: Any) -> list[Row]:
    return simulate_pipeline(draw_pipeline(np.random.default_rng(1), **options))


def row(optype: str = "forward-compute", start_ts: float = 0.0, duration: float = 1.0, **changes: Any) -> Row:
    plain = Row(0, 0, 0, 0, optype, start_ts, duration, 0, -1, -1)
    return plain._replace(**changes)


def write_text(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def assert_equal(got: StepTimeline, want: StepTimeline) -> None:
    assert got.ranks == want.ranks
    assert got.names == want.names
    assert (got.unmatched, got.notes, got.unknown) == (want.unmatched, want.notes, want.unknown)
    for name in ("steps", "begin_s", "end_s", "accounts"):
        assert np.array_equal(getattr(got, name), getattr(want, name), equal_nan=True), name
    for name in want.spans.__dataclass_fields__:
        assert np.array_equal(getattr(got.spans, name), getattr(want.spans, name), equal_nan=True), name


def test_a_csv_table_says_what_its_rows_say(tmp_path: Path) -> None:
    source = rows(vpp=2)
    write_operations(tmp_path / "table.csv", source)

    got = read_operations(tmp_path / "table.csv")

    assert got.name == "table.csv"
    assert_equal(got, rows_timeline(source))


def test_a_parquet_table_is_read_as_the_csv_of_the_same_rows(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: .venv/bin/pip install -c constraints.txt -e '.[traces]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    source = rows(vpp=2)
    write_operations(tmp_path / "table.csv", source)
    columns = dict(zip(pipelines.COLUMNS, zip(*source, strict=True), strict=True))
    columns["mb_id"] = tuple(None if each < 0 else each for each in columns["mb_id"])  # nulls are not known
    parquet.write_table(pa.table(columns), tmp_path / "table.parquet", row_group_size=100)

    got = read_operations(tmp_path / "table.parquet")

    assert_equal(got, read_operations(tmp_path / "table.csv"))


def test_a_table_of_spreadsheets_is_read_too(tmp_path: Path) -> None:
    # A byte-order mark, other columns, another order, and cells that are empty where a column does not apply.
    path = write_text(
        tmp_path / "table.csv",
        "\ufeffstep,optype,start_ts,duration,note,rank,stage,dp_rank,mb_id\n"
        "7,forward-compute,0.5,1.5,a,3,0,1,0\n"
        "7,forward-send,2,0.25,b,3,0,1,\n",
    )

    got = read_operations(path)

    assert (got.ranks[0].rank, got.ranks[0].data_rank, got.ranks[0].stage) == (3, 1, 0)
    assert got.steps.tolist() == [7]
    assert got.spans.micro.tolist() == [0, NONE]
    assert got.spans.sequence.tolist() == [NONE, NONE]
    assert got.spans.end_s.tolist() == [2.0, 2.25]


HEADER = ",".join(COLUMNS) + "\n"
DAMAGED: dict[str, tuple[str, str]] = {
    "no bytes": ("", "columns are missing: dp_rank, stage, rank, step, optype, start_ts, duration"),
    "a column is missing": ("dp_rank,stage,rank,step,optype,start_ts\n0,0,0,0,gc,1\n", "columns are missing: duration"),
    "no rows": (HEADER, "it has no rows"),
    "no row that is sound": (HEADER + "0,0,0,0,gc,1,-1\n0,0,0,0,gc,nan,1\n", "no row has"),
    "a column that is there twice": (HEADER[:-1] + ",rank\n0,0,0,0,gc,0,1,7\n", "columns are there twice: rank"),
    "a word for a number": (HEADER + "0,0,0,0,gc,soon,1\n", "could not convert"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_table_that_cannot_be_read_says_why(tmp_path: Path, case: str) -> None:
    text, want = DAMAGED[case]
    path = write_text(tmp_path / "table.csv", text)

    with pytest.raises(UserError) as caught:
        read_operations(path)

    assert caught.value.code == "trace-damaged"
    assert want in caught.value.what
    assert "table.csv" in caught.value.what


BYTES = {"no text": b"\xff\xfe\x00\x01,\n", "the begin of a parquet file": b"PAR1" + bytes(100)}


@pytest.mark.parametrize("case", BYTES)
def test_bytes_that_are_no_table_are_damage(tmp_path: Path, case: str) -> None:
    path = tmp_path / "table"
    path.write_bytes(BYTES[case])
    if BYTES[case].startswith(b"PAR1"):
        pytest.importorskip("pyarrow", reason="needs pyarrow: .venv/bin/pip install -c constraints.txt -e '.[traces]'")

    with pytest.raises(UserError) as caught:
        read_operations(path)

    assert caught.value.code == "trace-damaged"


def test_a_parquet_table_of_other_types_is_read_or_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: .venv/bin/pip install -c constraints.txt -e '.[traces]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    numbers = {name: pa.array([0.0, 1.0, 1.0]) for name in COLUMNS}
    invalid = pa.array([b"gc", b"\xff", b"gc"]).view(pa.string())
    cases = {
        "numbers as words": ({"rank": ["0", "1", "1"]}, 2),
        "bytes": ({"optype": pa.array([b"gc", b"\xff", b"gc"])}, 2),
        "no UTF-8": ({"optype": invalid}, 2),
        "rows without a type or a start": ({"optype": ["gc", None, "gc"], "start_ts": [0.0, 0.0, None]}, 2),
        "words for numbers": ({"rank": ["a", "b", "c"]}, "Failed to parse"),
        "lists": ({"start_ts": [[0.0], [1.0], [2.0]]}, "list"),
        "no words": ({"optype": [1, 2, 3]}, "its column optype is no text but int64"),
        "nothing": ({name: pa.nulls(3) for name in COLUMNS}, "its column optype is no text but null"),
        "moments": ({"start_ts": pa.array([0, 1, 2], pa.timestamp("us"))}, "timestamp"),
        "words for what is optional": ({"mb_id": ["a", "b", "c"]}, "Failed to parse"),
    }
    for case, (changes, want) in cases.items():
        table = {**numbers, "optype": pa.array(["gc", "x", "gc"]), **changes}
        parquet.write_table(pa.table(table), tmp_path / "table.parquet")
        if isinstance(want, str):
            with pytest.raises(UserError, match=want) as caught:
                read_operations(tmp_path / "table.parquet")
            assert caught.value.code == "trace-damaged", case
        else:
            assert len(read_operations(tmp_path / "table.parquet").ranks) == want, case


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1" + bytes(100))
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(EnvironmentProblem) as caught:
        read_operations(path)

    assert caught.value.code == "package-missing"
    assert "gscalar[traces]" in str(caught.value.next_step)


def test_an_operation_of_an_unknown_type_is_named_and_drawn() -> None:
    got = rows_timeline([row(), row("moe-all-to-all", 1.0, 2.0), row("deepep", 3.0)])

    assert got.unmatched == ("deepep", "moe-all-to-all")
    assert got.spans.activity.tolist() == [Activity.FORWARD, Activity.OTHER, Activity.OTHER]
    assert [got.names[at] for at in got.spans.name] == ["forward-compute", "moe-all-to-all", "deepep"]


def test_a_last_row_that_was_cut_short_is_left_out_with_a_note(tmp_path: Path) -> None:
    source = rows(steps=1)
    write_operations(tmp_path / "table.csv", source)
    whole = (tmp_path / "table.csv").read_text(encoding="utf-8")

    got = read_operations(write_text(tmp_path / "table.csv", whole[: whole.rindex("optimizer") + 3]))

    assert [note.split()[0] for note in got.notes] == ["1"]
    assert len(got.spans) == len(source) - 1


UNSOUND: dict[str, Callable[[Row], Row]] = {
    "a negative duration": lambda each: each._replace(duration=-0.1),
    "no duration": lambda each: each._replace(duration=float("nan")),
    "an endless duration": lambda each: each._replace(duration=float("inf")),
    "no start": lambda each: each._replace(start_ts=float("nan")),
    "no rank": lambda each: each._replace(rank=float("nan")),  # type: ignore[arg-type]
    "a rank beyond all measure": lambda each: each._replace(rank=1e30),  # type: ignore[arg-type]
    "a rank below 0": lambda each: each._replace(rank=-9),
    "a start beyond all measure": lambda each: each._replace(start_ts=1e300),
    "no step": lambda each: each._replace(step=float("nan")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", UNSOUND)
def test_a_row_that_is_not_sound_is_left_out_with_a_note(case: str) -> None:
    source = rows()
    damaged = [UNSOUND[case](each) if at in (3, 50) else each for at, each in enumerate(source)]

    got = rows_timeline(damaged)

    (note,) = got.notes
    assert note.startswith("2 operations")
    want = rows_timeline([each for at, each in enumerate(source) if at not in (3, 50)])
    assert np.array_equal(got.spans.start_s, want.spans.start_s)
    assert np.array_equal(got.accounts, want.accounts, equal_nan=True)


def test_an_operation_may_take_no_time() -> None:
    got = rows_timeline([row(), row("gc", 1.0, 0.0)])

    assert got.notes == ()
    assert len(got.spans) == 2


def test_accounts_sum_to_each_rank_s_step() -> None:
    got = rows_timeline(rows(dp=2, pp=4, micro=8, jitter=0.3, slow={(1, 2): 2.0}, delay_s=0.001))

    assert np.allclose(np.nansum(got.accounts, axis=2), got.step_s, rtol=1e-12)
    assert (np.nan_to_num(got.accounts) >= 0).all()
    known = {"compute", "exposed_communication", "optimizer", "gc", "other"}
    for name in ("data_wait", "h2d", "checkpoint", "host_gap"):
        assert np.isnan(got.account(name)).all(), name
        assert name not in known


def test_communication_is_exposed_where_nothing_computes() -> None:
    got = rows_timeline(
        [
            row("params-all-gather", 0.0, 2.0),
            row("forward-compute", 2.0, 3.0),
            row("forward-send", 4.0, 2.0),  # 1 s of it beside the compute
            row("backward-compute", 7.0, 4.0),  # after 1 s of nothing
            row("gc", 11.0, 0.5),
            row("optimizer-clip-main-grad", 11.5, 0.25),
            row("grads-reduce-scatter", 11.5, 0.5),  # beside the clip
            row("optimizer", 12.0, 1.0),
        ]
    )

    assert got.step_s.tolist() == [[13.0]]
    assert got.account("compute").tolist() == [[7.0]]
    assert got.account("exposed_communication").tolist() == [[2.0 + 1.0 + 0.5]]
    assert got.account("gc").tolist() == [[0.5]]
    assert got.account("optimizer").tolist() == [[1.0]]
    assert got.account("other").tolist() == [[1.0]]


def test_time_is_covered_once_however_operations_lie_in_one_another() -> None:
    got = rows_timeline(
        [
            row("params-all-gather", 0.0, 10.0),
            row("forward-recv", 1.0, 2.0),
            row("forward-recv", 4.0, 1.0),
            row("params-all-gather", 0.0, 1.0, rank=1),  # the next rank's are told from the first one's
            row("forward-recv", 3.0, 1.0, rank=1),
            row("forward-recv", -100.0, 1.0, rank=1, step=1),
        ]
    )

    exposed = got.account("exposed_communication")
    assert exposed[:, 0].tolist() == [10.0, 2.0]
    assert exposed[1, 1] == 1.0


def test_a_step_begins_with_its_first_rank_and_ends_with_each() -> None:
    got = rows_timeline([row(start_ts=0.5, duration=2.0), row(start_ts=1.0, duration=4.0, rank=1, dp_rank=1)])

    assert got.begin_s.tolist() == [[0.5], [0.5]]
    assert got.end_s.tolist() == [[2.5], [5.0]]
    assert got.account("other").tolist() == [[0.0], [0.5]]


def test_a_step_that_a_rank_lacks_is_not_known() -> None:
    got = rows_timeline([row(), row(step=3), row(rank=1, dp_rank=1)])

    assert got.steps.tolist() == [0, 3]
    assert np.isnan(got.step_s).tolist() == [[False, False], [False, True]]
    assert np.isnan(got.accounts[1, 1]).all()


def test_each_type_lies_on_its_lane() -> None:
    got = rows_timeline([row(optype, float(at), 0.5) for at, optype in enumerate(ACTIVITIES)])

    lanes = {got.names[name]: Lane(lane) for name, lane in zip(got.spans.name, got.spans.lane, strict=True)}
    computes = {"forward-compute", "backward-compute", "optimizer"}
    assert {name for name, lane in lanes.items() if lane is Lane.COMPUTE} == computes
    assert {name for name, lane in lanes.items() if lane is Lane.HOST} == {"gc"}
    assert got.unmatched == ()


def test_an_operation_of_unknown_kind_is_not_taken_for_communication() -> None:
    got = rows_timeline([row("forward-compute", 0.0, 1.0), row("my-own", 1.0, 4.0), row("forward-send", 5.0, 2.0)])

    assert got.unmatched == ("my-own",)
    want = {"compute": 1.0, "exposed_communication": 2.0, "other": 4.0}
    assert {name: float(got.account(name)[0, 0]) for name in want} == want
    lanes = {got.names[name]: Lane(lane) for name, lane in zip(got.spans.name, got.spans.lane, strict=True)}
    assert lanes["my-own"] is Lane.HOST


def test_what_a_table_cannot_know_is_said_with_a_reason() -> None:
    got = rows_timeline([row()])

    assert set(got.unknown) == UNKNOWN
    assert all(got.unknown.values())
    assert got.is_pipeline is False
    assert got.clock_error_s == 0.0


def test_a_table_written_by_others_has_quotes_and_the_like(tmp_path: Path) -> None:
    source = rows(steps=1)
    with (tmp_path / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        writer.writerows([pipelines.COLUMNS, *source])

    assert_equal(read_operations(tmp_path / "table.csv"), rows_timeline(source))
