"""The package as others get it: a wheel, installed into a venv of its own, which borrows the packages that it needs.

They are those of the venv that runs this test. Its own gscalar, which is this tree, is not among them: an editable
installation is a line in a .pth file, and those are not read in folders of PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def call(command: list[str | Path], cwd: Path, **environment: str) -> str:
    """Return the command's stdout; it must exit with 0."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_an_installed_wheel_runs_the_digits_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT], tmp_path)
    (wheel,) = tmp_path.glob("gscalar-*.whl")
    call([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    tools = tmp_path / "venv" / "bin"
    call([tools / "python", "-m", "pip", "install", "-q", "--no-deps", wheel], tmp_path)
    recipe = tmp_path / "digits"
    shutil.copytree(ROOT / "recipes" / "digits", recipe)

    home = str(tmp_path / "home")
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))
    call([tools / "gscalar", "run", recipe, "--home", home, "--set", "config.epochs=2"], tmp_path)

    (run,) = runs(tools, tmp_path, home)
    assert run["status"] == "completed"
    assert run["world"] == 1
    assert len(run["digests"]["weights"]) == 64
    where = call([tools / "python", "-c", "import gscalar; print(gscalar.__file__)"], tmp_path)
    assert where.startswith(str(tmp_path)), "the venv must use the wheel and not this tree"


def runs(tools: Path, cwd: Path, home: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(call([tools / "gscalar", "runs", "--home", home, "--json"], cwd))
    return found
