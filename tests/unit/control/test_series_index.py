from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from gscalar.base.errors import EnvironmentProblem
from gscalar.control.indexing.columns import step_columns
from gscalar.control.indexing.series_index import SeriesIndex, refresh_series
from gscalar.control.indexing.series_reading import open_current
from gscalar.control.indexing.series_rows import step_keys
from gscalar.model import events
from gscalar.model.accounts import ACCOUNTS, pack_accounts
from gscalar.state.home import Home
from gscalar.state.records.reader import RecordTail
from gscalar.state.series import SeriesReader, open_series
from gscalar.testing.builders import RunBuilder
from gscalar.testing.catalog_damage import damage_table


@pytest.fixture
def place(home: Path) -> Home:
    return Home(home)


def points(reader: SeriesReader, name: str, rank: int = 0, kind: str = "metric") -> list[tuple[int, float]]:
    got = reader.points(kind, name, rank)
    return list(zip(got.steps.tolist(), got.values.tolist(), strict=True))


def test_every_value_of_the_record_is_a_point_of_its_series(place: Home) -> None:
    run = RunBuilder(place).launch(2).train(2).log({"a": 1.5})
    packed = pack_accounts({"compute": 0.04, "other": 0.01})
    run.tell(events.Step(3, run.clock(), 0.05, 8.0, 0.0, 0.1, 2.5, 0, 0, packed), rank=1)
    run.workers[0].sample(run.clock(), -1, {"host/cpu_cores": 3.5})
    run.workers[0].sample(run.clock(), 0, {"worker/memory_bytes": 1e9})
    run.abandon()
    refresh_series(place, run.run_id)
    with open_series(place, run.run_id) as reader:
        assert points(reader, "train/loss", 1) == [(1, 5.0), (2, 3.0), (3, 2.5)]
        assert points(reader, "train/tokens_per_s", 1) == [(1, 1024 / 0.05), (2, 1024 / 0.05)]
        assert (points(reader, "a", 0), points(reader, "a", 1)) == ([(2, 1.5)], [])
        assert points(reader, "compute", 1, "account") == [(3, 0.04)]
        assert points(reader, "gc", 1, "account") == [(3, 0.0)]
        assert points(reader, "host/cpu_cores", -1, "hardware") == [(-1, 3.5)]
        assert points(reader, "worker/memory_bytes", 0, "hardware") == [(-1, 1e9)]
        assert {each.name for each in reader.list() if each.kind == "account"} == set(ACCOUNTS)


@pytest.mark.parametrize("tokens", [0.0, 8.0])
@pytest.mark.parametrize("samples", [0.0, 8.0])
def test_a_step_stands_for_what_the_catalog_takes_it_for(tokens: float, samples: float) -> None:
    step = events.Step(1, 0, 0.5, samples, tokens, 0.1, 1.0)
    want = [name for name, values in step_columns([step]) if values]
    assert [key.name for key in step_keys(0, tokens > 0, samples > 0, 0)] == want


def test_steps_after_the_one_that_a_later_attempt_began_from_are_left_out(place: Home) -> None:
    run = RunBuilder(place).launch().train(5)
    refresh_series(place, run.run_id)
    run.end_attempt("killed").launch(from_step=2).train(1, first_loss=40.0)
    refresh_series(place, run.run_id)
    with open_series(place, run.run_id) as reader:
        got = reader.points("metric", "train/loss", 0)
    run.abandon()
    assert got.steps.tolist() == [1, 2, 3]
    assert got.attempts.tolist() == [0, 0, 1]
    assert got.values[2] == 40.0 / 3


def test_points_whose_names_are_lost_are_no_points(place: Home) -> None:
    run = RunBuilder(place).launch()
    run.tell(events.Points(1, 0, 77, struct.pack("<d", 1.0)))
    run.tell(events.Names(78, ("a", "b"))).tell(events.Points(1, 0, 78, struct.pack("<d", 1.0)))
    run.abandon()
    refresh_series(place, run.run_id)
    with open_series(place, run.run_id) as reader:
        assert reader.list() == []


def test_names_that_change_their_meaning_in_one_batch_are_followed(place: Home) -> None:
    run = RunBuilder(place).launch()
    for name in ("a", "b", "a"):
        run.tell(events.Names(90, (name,))).tell(events.Points(1, run.clock(), 90, struct.pack("<d", ord(name))))
    run.abandon()
    refresh_series(place, run.run_id)
    with open_series(place, run.run_id) as reader:
        assert (points(reader, "a"), points(reader, "b")) == ([(1, 97.0), (1, 97.0)], [(1, 98.0)])


def test_a_step_beyond_64_bits_is_the_last_one(place: Home) -> None:
    run = RunBuilder(place).launch().log({"a": 1.0})
    run.tell(events.Names(78, ("a",))).tell(events.Points(2**63 + 5, 0, 78, struct.pack("<d", math.pi)))
    run.abandon()
    refresh_series(place, run.run_id)
    reader, got = open_current(place, run.run_id, lambda reader: points(reader, "a"))
    reader.close()
    assert got == [(0, 1.0)], "what lies after every cut never counts"


def test_nothing_new_costs_no_commit(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunBuilder(place).launch().train(3)
    index = SeriesIndex(place, run.run_id)
    index.catch_up()
    monkeypatch.setattr("gscalar.state.series.writing.SeriesWriter.commit", lambda *_: pytest.fail("a commit"))
    index.catch_up()
    index.close()
    run.abandon()


def test_a_record_that_became_shorter_is_read_again(place: Home, caplog: pytest.LogCaptureFixture) -> None:
    run = RunBuilder(place).launch().train(3).abandon()
    refresh_series(place, run.run_id)
    path = run.folder.worker_record(0, 0)
    other = RunBuilder(place, "other").launch().train(1).abandon()
    path.write_bytes(other.folder.worker_record(0, 0).read_bytes())
    refresh_series(place, run.run_id)
    with open_series(place, run.run_id) as reader:
        assert points(reader, "train/loss") == [(1, 4.0)]
    assert "has become shorter" in caplog.text


def test_a_store_that_was_removed_is_filled_again_by_whoever_had_it_open(place: Home) -> None:
    run = RunBuilder(place).launch().train(3)
    index = SeriesIndex(place, run.run_id)
    index.catch_up()
    for path in place.series(run.run_id).parent.glob("*.db*"):
        path.unlink()
    index.catch_up()
    index.close()
    run.abandon()
    with open_series(place, run.run_id) as reader:
        assert len(points(reader, "train/loss")) == 3


@pytest.mark.parametrize("table", ["files", "tails", "columns", "pieces"])
def test_a_damaged_store_is_filled_again_where_it_is_met(
    place: Home, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunBuilder(place).launch().train(5000).abandon()
    refresh_series(place, run.run_id)
    damage_table(place.series(run.run_id), table)
    if table != "files":  # what catching up reads
        with pytest.raises(EnvironmentProblem, match="series-damaged"), open_series(place, run.run_id) as reader:
            points(reader, "train/loss")
    reader, got = open_current(place, run.run_id, lambda reader: points(reader, "train/loss"))
    reader.close()
    assert len(got) == 5000
    assert len(list(place.series(run.run_id).parent.glob("*.damaged-*"))) == 1


def test_a_record_that_cannot_be_read_for_a_while_is_read_later(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunBuilder(place).launch().train(4)
    run.abandon()
    with monkeypatch.context() as broken:
        broken.setattr(RecordTail, "poll", refuse)
        refresh_series(place, run.run_id)
    refresh_series(place, run.run_id)
    with open_series(place, run.run_id) as reader:
        assert [step for step, _ in points(reader, "train/loss")] == [1, 2, 3, 4]


def refuse(tail: RecordTail, max_frames: int = 0) -> list[object]:
    raise OSError(5, "Input/output error")


def test_a_batch_is_shared_by_all_files(place: Home) -> None:
    run = RunBuilder(place).launch(3).train(5)
    run.abandon()
    index = SeriesIndex(place, run.run_id)
    index.catch_up(max_frames=4)
    index.close()
    with open_series(place, run.run_id) as reader:
        assert [len(points(reader, "train/loss", rank)) for rank in range(3)] == [5, 5, 5]
