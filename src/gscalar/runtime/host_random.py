"""Random numbers of Python and NumPy as one: seeding, saving, and a scope for data.

Every framework's own numbers come on top of these. NumPy's are touched only where it is loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any


def seed_host(seed: int) -> None:
    """Seed Python's generator, and NumPy's."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def host_state() -> dict[str, Any]:
    """Return the generators' states as plain values."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss]}
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tobytes(), int(position), int(has_gauss), float(cached)]
    return state


def set_host_state(state: Mapping[str, Any]) -> None:
    """Put back what `host_state` gave."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state:
        numpy = importlib.import_module("numpy")
        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), position, has_gauss, cached))


@contextlib.contextmanager
def drawing_on_host(seed: int) -> Iterator[None]:
    """Draw from generators seeded here, and give the training its own back afterwards.

    What a data set draws for a batch (an augmentation, a mask) is then a function of the batch
    alone: the same after a resume, and with any number of data workers.
    """
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    seed_host(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
