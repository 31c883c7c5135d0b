"""Standard input, output and error as a command needs them, however it was started."""

from __future__ import annotations

import io
import os
import sys


def open_streams() -> None:
    """Open what the caller has closed, and let no character that a stream cannot encode end the command.

    Where 0, 1 or 2 is closed, the next file to be opened would get the number, and prints would go into it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `fd`
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Send what is still in the buffer of stdout nowhere: its disk is full, and Python would try again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
