"""Random numbers of Python, NumPy and torch as one: seeding, saving, and a scope for data.

Source: torch's notes on reproducibility.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import msgspec
import torch

from gscalar.runtime.host_random import drawing_on_host, host_state, seed_host, set_host_state


def seed_all(seed: int, deterministic: bool) -> None:
    """Seed every generator; `deterministic` also forbids algorithms that may differ between runs."""
    seed_host(seed)
    torch.manual_seed(seed)
    if deterministic:
        # cuBLAS reads this when it is first used; setting it later does nothing.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def random_state() -> bytes:
    """Return the state of every generator, as msgpack."""
    state = host_state()
    state["torch"] = torch.get_rng_state().numpy().tobytes()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return msgspec.msgpack.encode(state)


def set_random_state(blob: bytes) -> None:
    """Put back what `random_state` gave."""
    state = msgspec.msgpack.decode(blob)
    set_host_state(state)
    torch.set_rng_state(_bytes_tensor(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes_tensor(state["cuda"]))


@contextlib.contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draw from generators seeded here, and give the training its own back afterwards.

    What a data set draws for a batch (an augmentation, a mask) is then a function of the batch
    alone: the same after a resume, and with any number of data workers.
    """
    torch_state = torch.default_generator.get_state()
    with drawing_on_host(seed):
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.default_generator.set_state(torch_state)


def _bytes_tensor(blob: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8)
