"""The lock that makes one supervisor the only one of its run.

An advisory lock on a file of the run's folder: the kernel gives it back when the last process that
holds it is gone. The gang's keeper inherits it, so a new supervisor cannot begin while workers of a
killed one may still write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from types import TracebackType

from gscalar.base.errors import UserError
from gscalar.state.home import RunFolder

_POLL_S = 0.05


class RunLock:
    """The held lock of a run.

    Raises:
        UserError: `run-active`, another supervisor (or what is left of one) still has it after `wait_s`.
    """

    def __init__(self, folder: RunFolder, run_id: str, *, wait_s: float = 0.0) -> None:
        path = folder.control / "supervisor.lock"
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= deadline:
                os.close(self.fd)
                raise run_active(run_id)
            time.sleep(_POLL_S)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)

    def _try(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # A file system without locks: one supervisor a run is then up to the user.
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        return True


def run_active(run_id: str) -> UserError:
    """Return the error for a run that is still going."""
    return UserError(
        code="run-active",
        what="The run is still going.",
        value=run_id,
        next_step=f"Look at it with `gscalar show {run_id}`, or end it with `gscalar cancel {run_id}`.",
    )
