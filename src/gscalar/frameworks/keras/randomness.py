"""Random numbers of Python, NumPy, Keras and its backend as one.

The layers of Keras 3 keep seeds of their own, which are variables of the model and saved with it; those of legacy
Keras draw from generators that are saved beside it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from gscalar.frameworks.keras.backend import backend_name
from gscalar.frameworks.keras.flavors import current, loaded
from gscalar.runtime.host_random import drawing_on_host, host_state, set_host_state


def seed_all(seed: int, deterministic: bool) -> None:
    """Seed every generator; `deterministic` also forbids algorithms that may differ between runs.

    Where both packages are loaded it is open yet which one is meant, and both are seeded.
    """
    seed %= 2**32
    backend = backend_name()
    for flavor in loaded() or [current()]:
        flavor.seed(seed)
    if backend == "tensorflow":
        import tensorflow as tf

        if deterministic:
            tf.config.experimental.enable_op_determinism()
        return
    if backend == "jax":  # which has no generator of its own; on a CPU it is always deterministic
        if deterministic:
            _forbid_jax_to_differ()
        return
    import torch

    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def random_state() -> bytes:
    """Return the state of every generator, as msgpack."""
    state: dict[str, Any] = {**host_state(), **{flavor.name: flavor.random_state() for flavor in loaded()}}
    if backend_name() == "torch":
        import torch

        state["torch"] = torch.get_rng_state().numpy().tobytes()
    elif backend_name() == "tensorflow":
        import tensorflow as tf

        state["tensorflow"] = tf.random.get_global_generator().state.numpy().tolist()
    return msgspec.msgpack.encode(state)


def set_random_state(blob: bytes) -> None:
    """Put back what `random_state` gave."""
    state = msgspec.msgpack.decode(blob)
    set_host_state(state)
    for flavor in loaded():
        if flavor.name in state:
            flavor.set_random_state(state[flavor.name])
    if "torch" in state:
        import torch

        torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    if "tensorflow" in state:
        import tensorflow as tf

        tf.random.get_global_generator().state.assign(np.asarray(state["tensorflow"], dtype=np.int64))


def _forbid_jax_to_differ() -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" not in flags:  # read when JAX makes its first array
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()


@contextlib.contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draw from generators of Python, NumPy and a loaded PyTorch seeded here, and give the training's back afterwards.

    What a data set draws for a batch is then a function of the batch alone.
    """
    torch = sys.modules.get("torch")
    torch_state = torch.default_generator.get_state() if torch is not None else None
    with drawing_on_host(seed):
        if torch is not None:
            torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            if torch is not None:
                torch.default_generator.set_state(torch_state)
