from __future__ import annotations

import gzip
import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from gscalar.base.errors import UserError
from gscalar.importers.recognition import open_traces, recognised
from gscalar.model.timeline import Rank, Spans, StepTimeline, no_steps
from gscalar.testing.kineto_traces import KinetoTrace, data_parallel_trace


def with_tables(path: Path, *tables: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        for table in tables:
            database.execute(f"CREATE TABLE {table} (id INTEGER)")
    return path


def xspace() -> bytes:
    plane = b"\x08\x01\x12\x09/host:CPU"  # id 1, name
    return b"\x0a" + bytes([len(plane)]) + plane


def contents(folder: Path) -> dict[str, Path]:
    """Write one file of each kind; names tell nothing."""
    text = json.dumps({"traceEvents": []})
    files: dict[str, str | bytes] = {
        "kineto": text,
        "kineto (gzip)": gzip.compress(text.encode()),
        "kineto (after a line)": f"\n{text}",
        "kineto (an array)": '[{"ph": "X"}]',
        "operations": "dp_rank,stage,rank,step,optype,start_ts,duration\n0,0,0,1,optimizer,0,1\n",
        "operations (with a mark)": b"\xef\xbb\xbfrank,optype,start_ts,duration\r\n",
        "operations (parquet)": b"PAR1\x15\x04",
        "xplane": xspace(),
    }
    paths = {}
    for kind, content in files.items():
        path = folder / f"file{len(paths)}.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        paths[kind] = path
    paths["nsight"] = with_tables(folder / "a.json", "StringIds", "CUPTI_ACTIVITY_KIND_KERNEL")
    paths["nsight (marks only)"] = with_tables(folder / "b.json", "StringIds", "NVTX_EVENTS")
    return paths


def test_a_file_is_what_it_holds_whatever_it_is_called(tmp_path: Path) -> None:
    got = {kind: recognised(path).name for kind, path in contents(tmp_path).items()}
    assert got == {kind: kind.partition(" ")[0] for kind in got}


NO_TRACES = {
    "text": b"# Read me\n",
    "a table of other columns": b"config,ms\n1,2\n",
    "nothing of a plane": b"\x0a\xff\xff\xff\x7f\x08",
    "a line, and text": b"\nhello",
    "a message that is no plane": b"\x0a\x05hello",
    "gzip of text": gzip.compress(b"hello"),
    "gzip of nonsense": b"\x1f\x8bnonsense",
}


@pytest.mark.parametrize("case", NO_TRACES)
def test_what_is_no_trace_is_refused_with_its_path(tmp_path: Path, case: str) -> None:
    path = tmp_path / "x.pt.trace.json"
    path.write_bytes(NO_TRACES[case])
    with pytest.raises(UserError) as raised:
        recognised(path)
    assert raised.value.code == "trace-unknown"
    assert str(path) in str(raised.value)


def test_a_database_of_another_program_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        recognised(with_tables(tmp_path / "a.sqlite", "runs"))
    assert raised.value.code == "trace-unknown"


def test_a_database_that_is_still_written_is_not_read_as_it_was_before(tmp_path: Path) -> None:
    path = with_tables(tmp_path / "a.sqlite", "StringIds")
    (tmp_path / "a.sqlite-wal").write_bytes(b"pages")
    with pytest.raises(UserError, match=r"a\.sqlite-wal") as raised:
        recognised(path)
    assert raised.value.code == "trace-damaged"
    (tmp_path / "a.sqlite-wal").write_bytes(b"")
    assert recognised(path).name == "nsight"


def test_a_damaged_database_and_an_empty_file_are_damaged(tmp_path: Path) -> None:
    broken = with_tables(tmp_path / "a.sqlite", "StringIds")
    broken.write_bytes(broken.read_bytes()[:200])
    (tmp_path / "empty").touch()
    for name in ("a.sqlite", "empty"):
        with pytest.raises(UserError) as raised:
            recognised(tmp_path / name)
        assert raised.value.code == "trace-damaged", name


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        open_traces([tmp_path / "absent.json"])
    assert raised.value.code == "trace-not-found"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="neither a file nor a folder") as caught:
        open_traces([tmp_path / "pipe"])
    assert (caught.value.code, caught.value.value) == ("trace-not-found", str(tmp_path / "pipe"))


def test_json_of_another_kind_is_told_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    with pytest.raises(UserError) as raised:
        open_traces([path])
    assert raised.value.code == "trace-unknown"
    assert "no traceEvents" in raised.value.what


def test_a_folder_gives_its_traces_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    for rank in range(3):
        data_parallel_trace(rank, 4).write(tmp_path / f"worker{rank}.json.gz")
    (tmp_path / "README.md").write_text("# about")
    (tmp_path / "result.json").write_text('{"answer": 1}')
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [{"ph')[:30])
    (tmp_path / "inner").mkdir()
    got = open_traces([tmp_path])
    assert [each.rank for each in got.ranks] == [0, 1, 2]
    assert got.name == tmp_path.name
    assert any("README.md" in note and "result.json" in note for note in got.notes)
    assert any("cut.json.gz is left out" in note for note in got.notes)


def test_a_damaged_file_that_was_given_itself_is_an_error(tmp_path: Path) -> None:
    good = data_parallel_trace(0, 2).write(tmp_path / "a.json")
    bad = tmp_path / "b.json"
    bad.write_text('{"schemaVersion": 1, "traceEvents": [{"ph')
    with pytest.raises(UserError) as raised:
        open_traces([good, bad])
    assert raised.value.code == "trace-damaged"
    assert "b.json" in str(raised.value)


def test_a_folder_without_traces_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# about")
    with pytest.raises(UserError) as raised:
        open_traces([tmp_path])
    assert raised.value.code == "trace-unknown"
    assert "README.md" in raised.value.what


def test_files_of_two_kinds_are_refused_by_name(tmp_path: Path) -> None:
    KinetoTrace(rank=0, world=1).write(tmp_path / "a.json")
    (tmp_path / "b.csv").write_text("rank,optype,start_ts,duration\n")
    with pytest.raises(UserError) as raised:
        open_traces([tmp_path / "a.json", tmp_path / "b.csv"])
    assert raised.value.code == "trace-mixed"
    assert "a.json" in raised.value.what
    assert "b.csv" in raised.value.what


@pytest.fixture
def read_paths(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Put an importer of xplane in place of the real one; return the paths that it is given."""
    given: list[Path] = []

    def read(path: Path) -> StepTimeline:
        given.append(path)
        return StepTimeline(
            source="xplane", name=path.name, ranks=(Rank(rank=0),), spans=Spans.of(0), names=(), **no_steps(1)
        )  # type: ignore[arg-type]  # no_steps gives fields of several types

    module = ModuleType("gscalar.importers.xplane")
    module.read_xplane = read  # type: ignore[attr-defined]  # as the real one has
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return given


def test_importers_of_single_files_are_given_one(tmp_path: Path, read_paths: list[Path]) -> None:
    path = tmp_path / "a"
    path.write_bytes(xspace())
    assert open_traces([path]).source == "xplane"
    assert read_paths == [path]
    with pytest.raises(UserError) as raised:
        open_traces([path, path])
    assert raised.value.code == "trace-mixed"
    assert "one can be read at a time" in raised.value.what


def test_progress_is_told_over_all_files(tmp_path: Path) -> None:
    for rank in range(2):
        data_parallel_trace(rank, 2).write(tmp_path / f"{rank}.json")
    told: list[float] = []
    open_traces([tmp_path], progress=told.append)
    assert told == [0.5, 1.0]
