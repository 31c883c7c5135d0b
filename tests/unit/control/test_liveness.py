from __future__ import annotations

import os
import socket
from typing import Any

import psutil
import pytest

from gscalar.control import liveness
from gscalar.control.liveness import is_alive


def me(**changes: Any) -> dict[str, Any]:
    process = psutil.Process()
    return {"host": socket.gethostname(), "pid": process.pid, "pid_start": process.create_time()} | changes


OWNERS = {
    "this process lives": (me, True),
    "its clock was corrected a little": (lambda: me(pid_start=psutil.Process().create_time() + 0.5), True),
    "its pid was given to another process": (lambda: me(pid_start=1.0), False),
    "no process has the pid": (lambda: me(pid=2**22 + 1), False),
    "it is unknown who it was": (lambda: me(pid=0, host=""), False),
    "another host's process cannot be judged": (lambda: me(host="elsewhere", pid=2**22 + 1), True),
}


@pytest.mark.parametrize("sentence", OWNERS)
def test_owner(sentence: str) -> None:
    owner, want = OWNERS[sentence]
    assert is_alive(owner()) is want


def test_a_zombie_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "status", lambda self: psutil.STATUS_ZOMBIE)
    assert not is_alive(me())


def test_a_process_that_may_not_be_looked_at_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(liveness.psutil, "Process", refuse)
    assert is_alive({"host": socket.gethostname(), "pid": os.getpid(), "pid_start": 1.0})
