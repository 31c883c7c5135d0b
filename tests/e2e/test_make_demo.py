"""What a visitor does first: a fresh clone in an empty folder, and `make demo`; in full size where time allows.

The environment that `make setup` makes is the one that runs this test, made minutes ago from the same files: the clone
is given that one, so that the packages are not installed a second time.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1200
SUMMARY = ("baseline/order0", "baseline/order1", "baseline/gzip", "baseline/xz", "val/bits_per_byte")


def clone(folder: Path) -> None:
    """Copy what a commit of this tree would hold, so that the test sees uncommitted work too."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # a deletion may not be in the index yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@pytest.mark.torch
@pytest.mark.slow(60)
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs git's list of files: run it in a clone")
@pytest.mark.parametrize(
    "size", [pytest.param("", marks=pytest.mark.long), "DEMO_ARGS=--set config.steps=100"], ids=["whole", "an eighth"]
)
def test_make_demo_in_a_fresh_clone_trains_with_two_workers(
    size: str, tmp_path: Path, home: Path, spawn: Callable[..., subprocess.Popen[Any]]
) -> None:
    folder = tmp_path / "clone"
    folder.mkdir()
    clone(folder)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / ".venv" / ".stamp-setup").touch()  # newer than the files of the clone
    out, err = tmp_path / "out", tmp_path / "err"

    with out.open("wb") as stdout, err.open("wb") as stderr:
        demo = spawn(["make", "demo", *filter(None, [size])], cwd=folder, stdout=stdout, stderr=stderr)
        code = demo.wait(LIMIT_S)

    said = f"{out.read_text()}\n{err.read_text()}"
    assert code == 0, said
    listed = subprocess.run(
        [folder / ".venv" / "bin" / "gscalar", "runs", "--json"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (run,) = json.loads(listed.stdout)
    assert (run["status"], run["name"]) == ("completed", "bytes_lm")
    assert [attempt["world"] for attempt in run["attempts"]] == [2]
    assert run["metrics"]["val/bits_per_byte"]["last"] < 3.0
    printed = [line.split()[0] for line in out.read_text().splitlines() if line.startswith("  ")]
    assert [name for name in printed if "/" in name] == list(SUMMARY)
    assert "steps/s" in err.read_text(), "progress is shown while it trains"
    assert f"gscalar show {run['id']}" in err.read_text(), "the summary ends with what to try next"
    assert str(home) in err.read_text(), "the summary says where the record is"
