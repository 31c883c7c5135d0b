"""What differs between Keras's backends: compiling, and arrays to and from the host.

TensorFlow, PyTorch or JAX is imported only where it is the backend that Keras itself runs on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.flavors import current

Array = NDArray[Any]


def backend_name() -> str:
    """Return the backend of this process.

    Raises:
        UserError: `backend-unsupported`.
    """
    name = current().backend_name()
    if name not in ("tensorflow", "torch", "jax"):
        raise UserError(
            code="backend-unsupported",
            what="Keras runs on a backend whose training step cannot be taken apart here.",
            value=name,
            next_step="Set KERAS_BACKEND to tensorflow, torch or jax before keras is imported.",
        )
    return name


def check_backend() -> None:
    """Raise where models cannot be trained on this backend, or not as it is set up.

    Raises:
        UserError: `backend-unsupported`, `strategy-unsupported`.
    """
    if backend_name() == "jax":
        from gscalar.frameworks.keras.stateless import check_supported

        check_supported()


def backend_version() -> str:
    """Return the backend's name and version."""
    if backend_name() == "tensorflow":
        import tensorflow as tf

        return f"tensorflow {tf.__version__}"
    if backend_name() == "jax":
        import jax

        return f"jax {jax.__version__}"
    import torch

    return f"torch {torch.__version__}"


def is_compiled(model: Any) -> bool:
    """Return whether the model compiles its own training step."""
    if backend_name() == "jax":
        return bool(model.jit_compile) and not model.run_eagerly
    return backend_name() == "tensorflow" and not model.run_eagerly


def compiled(function: Callable[..., Any], model: Any, variables: Callable[[], Sequence[Any]]) -> Callable[..., Any]:
    """Return the function compiled as the model compiles its own training step.

    `variables` returns those that the function reads or assigns, which JAX has to know.
    """
    if not is_compiled(model):
        return function
    if backend_name() == "tensorflow":
        import tensorflow as tf

        # Batches differ in size at an epoch's end, and one graph serves them all.
        graph: Callable[..., Any] = tf.function(function, reduce_retracing=True, jit_compile=bool(model.jit_compile))
        return graph
    from gscalar.frameworks.keras.stateless import compiled_over

    return compiled_over(variables, function)


def scope_of(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the scope in which variables of this model are made: that of its strategy, if it has one."""
    strategy = getattr(model, "distribute_strategy", None)
    scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext() if strategy is None else strategy.scope()
    return scope


def to_host(value: Any) -> Array:
    """Return a tensor's values on the host; they may share its memory."""
    if isinstance(value, np.ndarray):
        return value
    if backend_name() == "torch":
        tensor = value.value if hasattr(value, "value") and not callable(value.value) else value
        host: Array = tensor.detach().cpu().numpy()
        return host
    if backend_name() == "jax":
        return np.asarray(getattr(value, "value", value))
    replicas = getattr(value, "_values", None)  # of a strategy; to read them all would be a collective of all workers
    own = replicas[0] if isinstance(replicas, tuple) else value
    return np.asarray(own.numpy() if hasattr(own, "numpy") else own)


def to_tensor(value: Array) -> Any:
    """Return host values as a tensor of the backend."""
    if backend_name() == "torch":
        import torch
        from keras.src.backend.torch.core import get_device

        return torch.as_tensor(value, device=get_device())
    if backend_name() == "jax":
        import jax.numpy as jnp

        return jnp.asarray(value)
    import tensorflow as tf

    return tf.convert_to_tensor(value)


def staged(value: Array) -> Any:
    """Return host values as far on their way to a tensor as any thread can bring them; `to_tensor` goes on.

    The scopes of devices are each thread's own, so what is staged lies on the host. A tensor of PyTorch shares the
    array's memory there, and leaves nothing to do. JAX moves what it put on no device by name to where it is used.
    """
    if backend_name() == "torch":
        return value
    if backend_name() == "jax":
        return to_tensor(value)
    import tensorflow as tf

    with tf.device("CPU:0"):
        return tf.convert_to_tensor(value)


def constant(value: Any) -> Any:
    """Return a number of TensorFlow or JAX as it is now, for what comes later in the same graph."""
    if backend_name() == "jax":
        import jax.numpy as jnp

        return jnp.asarray(value)
    import tensorflow as tf

    return tf.identity(tf.convert_to_tensor(value))


def gradients_of(loss: Any, variables: Sequence[Any]) -> list[Any]:
    """Return the gradients of a loss of PyTorch, which knows how it came about.

    Raises:
        TypeError: the loss is none that can be differentiated by itself.
    """
    if backend_name() == "torch" and hasattr(loss, "backward"):
        for variable in variables:
            variable.value.grad = None
        loss.backward()
        return [variable.value.grad for variable in variables]
    advice = (
        "gscalar.keras.differentiated(loss, gradients) with what jax.value_and_grad returned"
        if backend_name() == "jax"
        else "gscalar.keras.taped(loss, tape) with the GradientTape that saw it"
    )
    raise TypeError(f"run.step was given a {type(loss).__name__}, from which no gradient follows; give {advice}")
