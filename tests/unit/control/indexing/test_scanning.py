from __future__ import annotations

from pathlib import Path

import pytest

from gscalar.control.indexing.scanning import is_record, scan_records
from gscalar.state.home import Home


@pytest.mark.parametrize("name", ["notes.rec", "a0-r0", "a000-r00000.rec.tmp", ".a000-r00000.rec", "edit-.rec"])
def test_other_files_are_no_records(name: str) -> None:
    assert not is_record(name)


def test_records_are_told_with_size_and_time_of_change_by_name(home: Path) -> None:
    folder = Home(home).run("one")
    folder.create()
    for name in ("supervisor-a000.rec", "a000-r00000.rec", "notes.txt"):
        (folder.records / name).write_bytes(b"abc")
    found = scan_records(folder)
    assert list(found) == ["a000-r00000.rec", "supervisor-a000.rec"]
    assert found["a000-r00000.rec"] == (3, (folder.records / "a000-r00000.rec").stat().st_mtime_ns)


def test_a_run_without_records_has_none(home: Path) -> None:
    assert scan_records(Home(home).run("gone")) == {}
