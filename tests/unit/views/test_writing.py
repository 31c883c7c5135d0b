from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gscalar.base.errors import EnvironmentProblem
from gscalar.views.writing import write_file


def test_a_file_is_replaced_by_all_pieces_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    write_file(path, ["a", "ü"], "report")
    assert path.read_text(encoding="utf-8") == "aü"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_written_into_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, ["through"], "report")
        got = os.read(reader, 100)
    finally:
        os.close(reader)
    assert got == b"through"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    write_file(link, ["new"], "report")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_pieces_that_fail_half_way_leave_the_old_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[str]:
        yield "half"
        raise ZeroDivisionError

    path = tmp_path / "trace.json"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError):
        write_file(path, pieces(), "trace")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["absent/page.html", "", "file/page.html", "x" * 300])
def test_a_place_that_cannot_be_written_is_named_with_what_should_be_there(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match="The trace cannot be written") as caught:
        write_file(tmp_path / place, ["x"], "trace")
    assert (caught.value.code, caught.value.value) == ("report-not-writable", str(tmp_path / place))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
