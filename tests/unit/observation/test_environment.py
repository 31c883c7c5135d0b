"""What is kept of a process's surroundings, and that nothing stops it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gscalar.observation import environment
from gscalar.observation.environment import (
    capture_environment,
    installed_packages,
    kept_variables,
    read_git,
)

# ---- git -------------------------------------------------------------------------------------------


def test_outside_a_repository_git_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("git was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert read_git(tmp_path) == {}


def test_a_missing_git_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_git(tmp_path) == {}


# ---- packages ----------------------------------------------------------------------------------------


def make_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_packages_are_those_that_importlib_lists() -> None:
    want: dict[str, str] = {}
    for found in metadata.distributions():
        name = found.metadata["Name"].lower().replace("_", "-").replace(".", "-")
        want.setdefault(name, found.version)
    assert installed_packages() == want


def test_the_first_of_two_versions_on_the_path_is_the_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path, {"a/my_pkg-1.0.dist-info/METADATA": "", "b/My.Pkg-2.0.dist-info/METADATA": ""})
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "absent")])
    assert installed_packages() == {"my-pkg": "1.0"}


def test_a_name_that_does_not_tell_the_version_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path, {"Old.egg-info/PKG-INFO": "Metadata-Version: 1.0\nName: Old_Thing\nVersion: 0.3\n"})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_packages() == {"old-thing": "0.3"}


# ---- variables -----------------------------------------------------------------------------------------


def test_only_variables_that_matter_are_kept_and_without_secrets() -> None:
    got = kept_variables(
        {
            "CUDA_VISIBLE_DEVICES": "0,1",
            "OMP_NUM_THREADS": "2",
            "HF_TOKEN": "abc",
            "HF_ENDPOINT": "https://me:pw@hub.org",
            "SLURM_JOB_ID": "5",
            "SLURM_CONF": "/x",
            "EDITOR": "vi",
            "LANGUAGE": "de",
        }
    )
    assert got == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HF_ENDPOINT": "https://[redacted]@hub.org",
        "HF_TOKEN": "[redacted]",
        "OMP_NUM_THREADS": "2",
        "SLURM_JOB_ID": "5",
    }


# ---- all of it --------------------------------------------------------------------------------------------


def test_the_whole_is_json_and_names_what_a_reproduction_needs(tmp_path: Path) -> None:
    got = capture_environment({"OMP_NUM_THREADS": "2"}, tmp_path, ["train.py", "--lr", "1", "--api-key", "abc"])
    assert json.loads(json.dumps(got)) == got
    assert got["command"]["argv"] == ["train.py", "--lr", "1", "--api-key", "[redacted]"]
    assert got["command"]["cwd"] == str(tmp_path)
    assert got["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert got["packages"]["numpy"] == metadata.version("numpy")
    assert got["variables"] == {"OMP_NUM_THREADS": "2"}
    assert {"cpu", "os", "memory"} <= set(got)


def test_the_program_is_named_with_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)
    got = capture_environment({}, tmp_path, ["train.py"])["command"]
    assert got["entry_point"] == str(tmp_path / "train.py")
    assert got["entry_point_sha256"] == hashlib.sha256(b"pass\n").hexdigest()


def test_what_cannot_be_read_is_absent_and_nothing_else_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a driver that crashes")

    monkeypatch.setattr(environment, "list_gpus", fail)
    monkeypatch.setattr(environment, "_PROC", tmp_path / "absent")
    got = capture_environment({}, tmp_path, [])
    assert not {"gpus", "memory", "limits", "git"} & set(got)
    assert {"python", "packages", "os"} <= set(got)


def test_a_folder_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    assert "python" in capture_environment({}, tmp_path / "gone", ["x"])
