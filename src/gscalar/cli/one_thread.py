"""Loads NumPy with a BLAS that starts no threads: a command that only looks multiplies no matrices.

Where a library has threads, starting them and their waiting for work is half of what importing NumPy takes. The
setting is read when the library is loaded, and is taken back: a command that starts processes hands it to none.
Modules of commands that need NumPy import this one before what else loads it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_SETTINGS: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def load_numpy() -> None:
    """Load NumPy with one thread, where nobody has loaded it or has set how many there are to be."""
    if "numpy" in sys.modules:
        return
    added = [each for each in _SETTINGS if each not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        import numpy as np  # noqa: F401
    finally:
        for each in added:
            del os.environ[each]


load_numpy()
