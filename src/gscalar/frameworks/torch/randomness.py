"""Random numbers of Python, NumPy and torch as one: seeding, saving, and a scope for data.

Sources: torch's notes on reproducibility. NumPy is touched only where it is loaded already.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import torch


def seed_all(seed: int, deterministic: bool) -> None:
    """Seed every generator; `deterministic` also forbids algorithms that may differ between runs."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if deterministic:
        # cuBLAS reads this when it is first used; setting it later does nothing.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def random_state() -> bytes:
    """Return the state of every generator, as msgpack."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tobytes(), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return msgspec.msgpack.encode(state)


def set_random_state(blob: bytes) -> None:
    """Put back what `random_state` gave."""
    state = msgspec.msgpack.decode(blob)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(_bytes_tensor(state["torch"]))
    if "numpy" in state:
        numpy = importlib.import_module("numpy")
        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes_tensor(state["cuda"]))


@contextlib.contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draw from generators seeded here, and give the training its own back afterwards.

    What a data set draws for a batch (an augmentation, a mask) is then a function of the batch
    alone: the same after a resume, and with any number of data workers.
    """
    numpy = sys.modules.get("numpy")
    python_state, torch_state = random.getstate(), torch.default_generator.get_state()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def _bytes_tensor(blob: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8)
