"""Random numbers of Python, NumPy, Keras and its backend as one.

Keras's layers keep seeds of their own, which are variables of the model and saved with it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import keras
import msgspec
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.utils import rng_utils

from gscalar.frameworks.keras.backend import backend_name, to_host
from gscalar.runtime.host_random import drawing_on_host, host_state, seed_host, set_host_state


def seed_all(seed: int, deterministic: bool) -> None:
    """Seed every generator; `deterministic` also forbids algorithms that may differ between runs."""
    seed %= 2**32
    if backend_name() == "tensorflow":
        import tensorflow as tf

        keras.utils.set_random_seed(seed)
        if deterministic:
            tf.config.experimental.enable_op_determinism()
        return
    import torch

    # What keras.utils.set_random_seed does, but for importing TensorFlow wherever it is installed.
    seed_host(seed)
    torch.manual_seed(seed)
    global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, seed)
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def random_state() -> bytes:
    """Return the state of every generator, as msgpack."""
    state: dict[str, Any] = host_state()
    shared = seed_generator.global_seed_generator()
    state["keras"] = to_host(shared.state).astype(np.int64).tolist()
    if backend_name() == "torch":
        import torch

        state["torch"] = torch.get_rng_state().numpy().tobytes()
    else:
        import tensorflow as tf

        state["tensorflow"] = tf.random.get_global_generator().state.numpy().tolist()
    return msgspec.msgpack.encode(state)


def set_random_state(blob: bytes) -> None:
    """Put back what `random_state` gave."""
    state = msgspec.msgpack.decode(blob)
    set_host_state(state)
    seed_generator.global_seed_generator().state.assign(np.asarray(state["keras"]))
    if "torch" in state:
        import torch

        torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    if "tensorflow" in state:
        import tensorflow as tf

        tf.random.get_global_generator().state.assign(np.asarray(state["tensorflow"], dtype=np.int64))


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
