"""From the command of a job to what is executed, checked before anything is created.

`python` and `python3` as the first word mean the Python that runs gscalar, so that a job finds the
packages of the environment in which it was started. Any other program is looked up as a shell would:
a path relative to the job's folder, a bare name on PATH. A Python script that is missing is refused
here too, and not by N workers later.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gscalar.base.errors import UserError

_OWN_PYTHON: Final = ("python", "python3")


def resolve_command(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command with an absolute program.

    Raises:
        UserError: `command-not-found`, also for a Python script that does not exist.
    """
    if not command:
        raise UserError(
            code="command-not-found",
            what="It is not known how the script of this run was started.",
            next_step="Start it by hand with the environment variable GSCALAR_RUN_ID set to the run's id.",
        )
    program = sys.executable if command[0] in _OWN_PYTHON else _find_program(command[0], folder, environment)
    if Path(program).name.startswith("python"):
        script = _python_script(command[1:])
        if script is not None and not (folder / script).exists():
            raise UserError(
                code="command-not-found",
                what="The script of the command does not exist.",
                value=script,
                next_step=f"Scripts are looked up from the job's folder, which is {folder}.",
            )
    return program, *command[1:]


def default_name(command: Sequence[str]) -> str:
    """Return a run's name where there is no spec file: the script's, the module's, or the program's."""
    if not Path(command[0]).name.startswith("python"):
        return Path(command[0]).stem
    script = _python_script(command[1:])
    if script is None and "-m" in command[:-1]:
        return command[list(command).index("-m") + 1].rpartition(".")[2]
    return Path(script or command[0]).stem


def _find_program(program: str, folder: Path, environment: Mapping[str, str]) -> str:
    if "/" in program:
        path = folder / program
        if not path.is_file():
            raise _not_found("does not exist", program, f"Paths are looked up from the job's folder, {folder}.")
        if not os.access(path, os.X_OK):
            raise _not_found("is not executable", program, f"chmod +x {path}, or name its interpreter first.")
        return str(path)
    found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if found is None:
        hint = f"Write ./{program} for a file of the job's folder." if (folder / program).exists() else ""
        raise _not_found("is not on PATH", program, hint or "Install it, or give its path.")
    return str(Path(found).absolute())


def _python_script(arguments: Sequence[str]) -> str | None:
    """Return the script among an interpreter's arguments; None for -m, -c and standard input."""
    words = iter(arguments)
    for word in words:
        if word == "--check-hash-based-pycs":
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif word == "-" or not word.startswith("--"):
            kind = _first_of(word[1:], "cmWX") if word != "-" else "-"
            if kind in ("c", "m", "-"):
                return None
            if kind and word.endswith(kind):
                next(words, None)  # the value of -W or -X is the next word
    return None


def _first_of(letters: str, wanted: str) -> str:
    """Return the first of the wanted letters in a cluster such as `-um`, or nothing."""
    return next((letter for letter in letters if letter in wanted), "")


def _not_found(how: str, program: str, next_step: str) -> UserError:
    return UserError(code="command-not-found", what=f"The command's program {how}.", value=program, next_step=next_step)
