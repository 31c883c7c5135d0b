"""Tracebacks of user errors, without Scalar's own frames: what is to be repaired is in the script."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

from gscalar.base.errors import ScalarError

_PACKAGE: Final = str(Path(__file__).resolve().parents[1]) + "/"


def shown_traceback(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback to show: whole, or only the script's frames where the error is one of ours to explain."""
    return _outside(trace) if isinstance(error, ScalarError) else trace


def _outside(trace: TracebackType | None) -> TracebackType | None:
    if trace is None:
        return None
    rest = _outside(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
