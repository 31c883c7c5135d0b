"""Random numbers of Python, NumPy, Keras and its backend as one.

Keras's layers keep seeds of their own, which are variables of the model and saved with it.
"""

from __future__ import annotations

from typing import Any

import keras
import msgspec
import numpy as np
from keras.src.random import seed_generator

from gscalar.frameworks.keras.backend import backend_name, to_host
from gscalar.runtime.host_random import host_state, set_host_state


def seed_all(seed: int, deterministic: bool) -> None:
    """Seed every generator; `deterministic` also forbids algorithms that may differ between runs."""
    keras.utils.set_random_seed(seed % 2**32)
    if deterministic and backend_name() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    elif deterministic:
        import torch

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
