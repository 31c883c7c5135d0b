"""Surroundings read by real processes: git on a repository of the test's own, an interpreter of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gscalar.observation.environment import read_git

NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="needs git: apt-get install git")


def git(folder: Path, *arguments: str) -> str:
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@x"}
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    environ = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with one commit."""
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("lr = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    return tmp_path


@NEEDS_GIT
def test_a_clean_clone_is_its_commit(clone: Path) -> None:
    assert read_git(clone) == {"commit": git(clone, "rev-parse", "HEAD").strip(), "branch": "main", "dirty": False}


@NEEDS_GIT
def test_a_change_has_a_digest_that_its_undoing_takes_away(clone: Path) -> None:
    (clone / "train.py").write_text("lr = 2\n")
    first = read_git(clone)
    assert first["dirty"] is True
    assert len(first["diff_sha256"]) == 64
    (clone / "train.py").write_text("lr = 3\n")
    assert read_git(clone)["diff_sha256"] != first["diff_sha256"]
    (clone / "train.py").write_text("lr = 1\n")
    assert read_git(clone)["dirty"] is False


@NEEDS_GIT
def test_a_subfolder_a_detached_head_and_a_remote_with_a_password(clone: Path) -> None:
    (clone / "src").mkdir()
    git(clone, "checkout", "--detach")
    git(clone, "remote", "add", "origin", "https://me:hunter22@git.org/r.git")
    got = read_git(clone / "src")
    assert "branch" not in got
    assert got["remote"] == "https://[redacted]@git.org/r.git"


@NEEDS_GIT
def test_a_repository_without_a_commit_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init")
    assert read_git(tmp_path) == {"branch": "main", "dirty": False}


@NEEDS_GIT
def test_where_a_status_takes_too_long_the_commit_is_left(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def slow_status(command: list[str], **options: Any) -> Any:
        if "status" in command:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", slow_status)
    assert set(read_git(clone)) == {"commit"}


def test_no_framework_is_imported_for_it() -> None:
    code = (
        "import os, sys, pathlib\n"
        "from gscalar.observation.environment import capture_environment\n"
        "capture_environment(os.environ, pathlib.Path.cwd(), sys.argv)\n"
        "print([name for name in ('torch', 'numpy', 'tensorflow') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
