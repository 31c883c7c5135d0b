"""Every framework keeps the contract of `gscalar.runtime.framework`."""

from __future__ import annotations

import pytest

from gscalar.testing.framework_suite import FrameworkSuite

TOY = """
import random
import numpy as np
from gscalar.testing.toy import ToyData, ToyFramework, ToyModel, ToySGD
framework = ToyFramework()
def make_objects(features):
    model = ToyModel(features)
    return [model, ToySGD(model)]
def make_data(size, batch_size, shuffle):
    x = np.random.default_rng(1).normal(size=(size, 3))
    return ToyData(x, np.arange(float(size)), batch_size, shuffle)
def loss_of(model, batch): return model.loss(batch)
def ids_of(batch): return [int(y) for y in batch[1]]
def weights_of(model): return model.weights.tolist()
draw = random.random
"""
TORCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from gscalar.frameworks.torch.adapter import TorchFramework
framework = TorchFramework()
def make_objects(features):
    torch.manual_seed(1)
    model = torch.nn.Linear(features, 1)
    return [model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]
def make_data(size, batch_size, shuffle):
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, torch.arange(float(size))), batch_size=batch_size, shuffle=shuffle)
def loss_of(model, batch): return (model(batch[0])[:, 0] - batch[1]).square().mean()
def ids_of(batch): return [int(y) for y in batch[1]]
def weights_of(model): return torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
def draw(): return float(torch.rand(()))
"""
KERAS = """
import os
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from gscalar.frameworks.keras.adapter import KerasFramework
from gscalar.frameworks.keras.backend import to_host
from gscalar.frameworks.keras.capture import Differentiated
from gscalar.frameworks.keras.data import Arrays
from gscalar.frameworks.keras.trainee import Taped
framework = KerasFramework()
def make_objects(features):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((features,)), keras.layers.Dense(1)])
    model.run_eagerly = keras.backend.backend() != "jax"  # whose step is another function where it is compiled
    return [model, keras.optimizers.SGD(0.1, momentum=0.9)]
def make_data(size, batch_size, shuffle):
    x = np.random.default_rng(1).normal(size=(size, 3)).astype("float32")
    return Arrays((x, np.arange(float(size), dtype="float32")), batch_size, shuffle)
def mean_square(model, batch): return keras.ops.mean(keras.ops.square(model(batch[0])[:, 0] - batch[1]))
def loss_of(model, batch):
    if keras.backend.backend() == "torch":
        return mean_square(model, batch)
    if keras.backend.backend() == "jax":
        import jax
        def stateless(values):
            with keras.StatelessScope(state_mapping=zip(model.trainable_variables, values)):
                return mean_square(model, batch)
        return Differentiated(*jax.value_and_grad(stateless)([each.value for each in model.trainable_variables]))
    import tensorflow as tf
    with tf.GradientTape() as tape:
        loss = mean_square(model, batch)
    return Taped(loss, tape)
def ids_of(batch): return [int(y) for y in batch[1]]
def weights_of(model): return [float(value) for weight in model.weights for value in to_host(weight).ravel()]
def draw(): return float(keras.random.uniform(()))
"""
LEGACY_KERAS = """
import os
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf
import tf_keras as keras
from gscalar.frameworks.keras.adapter import KerasFramework
from gscalar.frameworks.keras.data import Arrays
from gscalar.frameworks.keras.trainee import Taped
framework = KerasFramework()
def make_objects(features):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((features,)), keras.layers.Dense(1)])
    model.run_eagerly = True
    return [model, keras.optimizers.SGD(0.1, momentum=0.9)]
def make_data(size, batch_size, shuffle):
    x = np.random.default_rng(1).normal(size=(size, 3)).astype("float32")
    return Arrays((x, np.arange(float(size), dtype="float32")), batch_size, shuffle)
def loss_of(model, batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(batch[0])[:, 0] - batch[1]))
    return Taped(loss, tape)
def ids_of(batch): return [int(y) for y in batch[1]]
def weights_of(model): return [float(value) for weight in model.weights for value in weight.numpy().ravel()]
def draw(): return keras.initializers.RandomUniform()((1,)).numpy().item()
"""


class TestToyFramework(FrameworkSuite):
    subject = TOY


@pytest.mark.torch
class TestTorchFramework(FrameworkSuite):
    subject = TORCH


# One process has one backend: tests/integration/frameworks/keras runs this class on the other ones.
@pytest.mark.tensorflow
class TestKerasFramework(FrameworkSuite):
    subject = KERAS


@pytest.mark.tensorflow
class TestLegacyKeras(FrameworkSuite):
    subject = LEGACY_KERAS
    # The ranks are a group that knows of no Keras, and TestKerasFramework's have met in it.
    test_ranks_agree = None  # type: ignore[assignment]
