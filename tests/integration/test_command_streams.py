"""The installed command with standard streams that are closed, broken or full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_GSCALAR = f"{sys.executable} -m gscalar"


def shell(line: str, home: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "GSCALAR_HOME": str(home), **variables}
    return subprocess.run(
        line, shell=True, executable="/bin/bash", cwd=home.parent, env=environment, capture_output=True, timeout=60
    )


def statuses(home: Path) -> list[str]:
    return [run["status"] for run in json.loads(shell(f"{_GSCALAR} runs --json", home).stdout)]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_is_recorded_whatever_stream_is_closed(closed: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert shell(f"{_GSCALAR} run -- echo hello {closed}", home).returncode == 0
    assert statuses(home) == ["completed"]


def test_a_reader_that_leaves_does_not_change_what_became_of_the_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    loop = "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done"
    line = f"{_GSCALAR} run -- sh -c '{loop}' 2>&1 | head -1; exit ${{PIPESTATUS[0]}}"
    assert shell(line, home).returncode == 0
    assert statuses(home) == ["completed"]


def test_a_full_disk_below_stdout_is_a_problem_of_the_machine(tmp_path: Path) -> None:
    for verb in ("runs --json", "run --schema", "doctor"):
        done = shell(f"{_GSCALAR} {verb} > /dev/full", tmp_path / "home")
        assert (done.returncode, done.stderr) == (3, b"error: No space left on device\n"), verb


def test_what_stdout_cannot_encode_is_escaped(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert shell(f"{_GSCALAR} run --name é -- true", home, PYTHONIOENCODING="ascii").returncode == 0
    assert b"\\xe9" in shell(f"{_GSCALAR} runs", home, PYTHONIOENCODING="ascii").stdout


def test_bytes_that_are_no_text_are_wrong_usage(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for words in ("show $'\\xff'", "runs $'\\xff'", "tag x $'a=\\xff'", "run --name $'\\xff' -- true"):
        done = shell(f"{_GSCALAR} {words}", home)
        assert done.returncode == 2, words
        assert b"not UTF-8" in done.stderr
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    Path(folder).mkdir()
    done = shell(f"cd $'\\xff' && {_GSCALAR} run -- true", home)
    assert done.returncode == 2
    assert b"[bad-encoding]" in done.stderr
    assert not home.exists()


def test_a_folder_that_is_gone_is_wrong_usage(tmp_path: Path) -> None:
    done = shell(f"mkdir gone && cd gone && rmdir ../gone && {_GSCALAR} run -- true", tmp_path / "home")
    assert done.returncode == 2
    assert b"has been removed" in done.stderr
