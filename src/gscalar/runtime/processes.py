"""Names for processes that no other process ever had: boot id, pid and start time, from Linux's /proc.

A launcher's workers find the same launcher without talking: the nearest ancestor that does not
carry the variables which the launcher gives its workers. A shell script between the two does no
harm, since it carries them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")


def launcher_process(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the name of the process that gave the environment these variables; without names, our own."""
    pid = os.getpid()
    if names:
        pid = os.getppid()
        while pid > 1 and _carries(pid, environ, names):
            pid = _parent(pid)
    return process_name(pid)


def process_name(pid: int) -> str:
    """Return boot id, pid and start time of a process; where there is no /proc, the host and the pid."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{pid}:{_stat_fields(pid)[19]}"
    except (OSError, IndexError):
        return f"{os.uname().nodename}:{pid}"


def is_running(name: str) -> bool:
    """Whether the process of this name runs, as far as this process can see; one that has ended does not.

    What waits for its parent to notice that it has ended (a zombie) does not run.
    """
    pid = int(name.split(":")[1])
    try:
        state = _stat_fields(pid)[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX" and process_name(pid) == name


def _carries(pid: int, environ: Mapping[str, str], names: tuple[str, ...]) -> bool:
    """Whether a process was started with the launcher's variables; any rank's values will do."""
    try:
        started_with = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    given = {entry.partition(b"=")[0].decode(errors="replace") for entry in started_with}
    return all(name in given for name in names if name in environ)


def _parent(pid: int) -> int:
    try:
        return int(_stat_fields(pid)[1])
    except (OSError, IndexError, ValueError):
        return 0


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command, which may hold spaces and parentheses."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
