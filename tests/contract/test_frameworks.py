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


class TestToyFramework(FrameworkSuite):
    subject = TOY


@pytest.mark.torch
class TestTorchFramework(FrameworkSuite):
    subject = TORCH
