"""What a job's command means, and what is refused before anything is created."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gscalar.base.errors import UserError
from gscalar.control.commands import default_name, resolve_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "plain.sh").write_text("")
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("python", ["python", "python3"])
def test_python_is_the_one_that_runs_gscalar(folder: Path, python: str) -> None:
    assert resolve_command([python, "train.py", "--lr", "1"], folder, {}) == (sys.executable, "train.py", "--lr", "1")


def test_another_program_is_looked_up_as_a_shell_would(folder: Path) -> None:
    path = {"PATH": str(folder / "bin")}
    assert resolve_command(["tool", "x"], folder, path) == (str(folder / "bin/tool"), "x")
    assert resolve_command(["bin/tool"], folder, {}) == (str(folder / "bin/tool"),)
    assert resolve_command([sys.executable, "-c", "0"], folder, {})[0] == sys.executable


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "package"],
        ["-um", "nowhere"],
        ["-c", "print(1)"],
        ["-"],
        ["-u", "-X", "dev", "train.py"],
        ["-Wignore", "train.py"],
        ["-uW", "ignore", "train.py"],
        ["--check-hash-based-pycs", "always", "train.py"],
        ["package"],
        [],
    ],
)
def test_a_script_that_is_there_or_is_none_passes(folder: Path, arguments: list[str]) -> None:
    assert resolve_command(["python", *arguments], folder, {})[1:] == tuple(arguments)


REFUSED = {
    "a program that is nowhere": (["no-such-program"], "is not on PATH"),
    "a path that does not exist": (["./absent"], "does not exist"),
    "a file that is not executable": (["./plain.sh"], "is not executable"),
    "a folder": (["./bin"], "does not exist"),
    "a script that does not exist": (["python", "-u", "tain.py"], "script of the command does not exist"),
    "a script after an option with a value": (["python", "-X", "dev", "tain.py"], "script of the command"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_is_refused(folder: Path, sentence: str) -> None:
    command, words = REFUSED[sentence]
    with pytest.raises(UserError, match=words) as caught:
        resolve_command(command, folder, {"PATH": "/nowhere"})
    assert caught.value.code == "command-not-found"


def test_a_file_of_the_folder_without_its_path_gets_a_hint(folder: Path) -> None:
    with pytest.raises(UserError, match=r"Write \./plain\.sh"):
        resolve_command(["plain.sh"], folder, {"PATH": "/nowhere"})


def test_the_default_name_is_the_scripts() -> None:
    assert default_name(["python", "-u", "src/train.py", "--x"]) == "train"
    assert default_name(["python", "-m", "package.train"]) == "train"
    assert default_name(["python", "-c", "0"]) == "python"
    assert default_name(["./run.sh"]) == "run"


def test_a_run_whose_command_nobody_knows_is_refused(folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        resolve_command((), folder, {})
    assert caught.value.code == "command-not-found"
    assert "GSCALAR_RUN_ID" in caught.value.next_step
