"""How long one iteration of a GPT-like transformer takes, by how it is cut over GPUs.

Tensor parallelism t cuts every layer, pipeline parallelism p the stack of layers, data parallelism d the batch
(Megatron-LM: Narayanan et al., SC'21). One micro-batch of b sequences of length s, hidden size h, costs a GPU

    device  = (72 b s h^2 + 12 b s^2 h) / t / F               matrix products, forward and backward
            + bytes / B                                       what moves between them: norms, dropout, softmax
            + 4 ring(t, 2 b s h bytes)                        all-reduces inside the layer
    layer   = |(launch, device)|_4                            the host launches while the device works
    head    = |(launch of a micro-batch, device of the logits)|_4

and one iteration with m = batch / (b d) micro-batches on each pipeline, first in, first out (1F1B),

    (L layer + head + (p - 1) sends) + (m - 1) (L / p layer + head + sends)
    + ring(d, gradients) + parameters of a GPU * update + constant

The norm joins the two regimes smoothly: a small layer takes what its launches take however fast the device is, and a
large one what the device takes. Ten constants are fitted, each with a physical meaning and a usual value
(`CONSTANTS`).

Limits: all GPUs are equal and on one fast network; no recomputation, no interleaved stages, no overlap of gradients.
Bytes of activations are those of 16-bit training (Korthikanti et al. 2022, table 2). What was measured on one machine
says nothing about links between machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.model.timeline import Floats
from gscalar.prediction.least_squares import PositiveFit, fit_positive

_NORM: Final = 4.0  # of launch and device time: 19 % more than either where both are equal
_TO_90: Final = 1.645
_HALF: Final = 2  # bytes of a 16-bit number
_GRADIENT: Final = 4  # bytes of a gradient as it is summed

# What is fitted: usual value, unit and meaning.
CONSTANTS: Final[dict[str, tuple[float, str]]] = {
    "flops_per_s": (120e12, "FLOP/s of large matrix products"),
    "layer_launch_s": (2e-3, "s to launch a layer's forward and backward"),
    "memory_bytes_per_s": (1.2e12, "byte/s between memory and processors"),
    "tensor_latency_s": (30e-6, "s a hop of a layer's all-reduce"),
    "tensor_bytes_per_s": (100e9, "byte/s of a layer's all-reduce"),
    "send_latency_s": (50e-6, "s to hand a micro-batch to the next stage, apart from its bytes"),
    "gradient_bytes_per_s": (100e9, "byte/s of the gradients' all-reduce"),
    "update_s_per_parameter": (30e-12, "s of the optimizer for each parameter of a GPU"),
    "head_launch_s": (3e-3, "s to launch what a micro-batch costs beside its layers"),
    "constant_s": (5e-3, "s of an iteration that nothing else explains"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layouts:
    """Models and how they are cut, as columns of equal length, all positive."""

    global_batch: Floats  # sequences
    micro_batch: Floats
    hidden: Floats
    heads: Floats
    layers: Floats
    sequence: Floats  # tokens
    tensor: Floats
    data: Floats
    pipeline: Floats
    vocabulary: float = 51_200.0  # GPT-2's, padded as Megatron-LM does

    def __post_init__(self) -> None:
        columns = [getattr(self, each.name) for each in fields(self) if each.name != "vocabulary"]
        lengths = {len(each) for each in columns}
        assert len(lengths) == 1, f"columns of unequal length: {lengths}"
        assert all((each > 0).all() for each in columns), "sizes and degrees must be positive"

    @classmethod
    def of(cls, columns: Mapping[str, npt.ArrayLike], *, vocabulary: float = 51_200.0) -> Layouts:
        """Return layouts of plain columns, named as the fields."""
        return cls(**{name: np.asarray(column, np.float64) for name, column in columns.items()}, vocabulary=vocabulary)

    def __getitem__(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Layouts:
        columns = {each.name: getattr(self, each.name)[chosen] for each in fields(self) if each.name != "vocabulary"}
        return Layouts(**columns, vocabulary=self.vocabulary)

    def __len__(self) -> int:
        return len(self.hidden)

    @property
    def num_gpus(self) -> Floats:
        """GPUs of each layout."""
        return self.tensor * self.data * self.pipeline

    @property
    def num_micro_batches(self) -> Floats:
        """Micro-batches that each pipeline works through in an iteration."""
        return self.global_batch / (self.micro_batch * self.data)


@dataclass(frozen=True, slots=True)
class TransformerModel:
    """Constants of one kind of machine, fitted to iterations that were measured on it."""

    fit: PositiveFit

    @property
    def constants(self) -> dict[str, float]:
        """The fitted constants, by name, in the units of `CONSTANTS`."""
        return dict(zip(CONSTANTS, self.fit.constants.tolist(), strict=True))

    def predict_s(self, layouts: Layouts) -> Floats:
        """Return the seconds of one iteration of each layout."""
        return iteration_s(self.fit.constants, layouts)

    def interval_s(self, layouts: Layouts) -> tuple[Floats, Floats]:
        """Return the ends of the 90 % interval of one measurement, for layouts like those that were fitted.

        It holds what the fit left unexplained and what the constants are not known by; not that the model may be
        wrong elsewhere.
        """
        here = np.log(self.predict_s(layouts))
        steps = np.exp(np.eye(len(self.fit.constants)) * 1e-5)
        slopes = np.stack(
            [(np.log(iteration_s(self.fit.constants * step, layouts)) - here) / 1e-5 for step in steps], axis=1
        )
        deviation = np.sqrt(self.fit.spread**2 + np.einsum("ni,ij,nj->n", slopes, self.fit.covariance, slopes))
        return np.exp(here - _TO_90 * deviation), np.exp(here + _TO_90 * deviation)


def fit_transformer(layouts: Layouts, measured_s: Floats) -> TransformerModel:
    """Return the model whose constants come nearest to the measured iterations, relative to them."""
    start = np.array([usual for usual, _ in CONSTANTS.values()])
    return TransformerModel(fit_positive(lambda constants: iteration_s(constants, layouts), measured_s, start))


def iteration_s(constants: Floats, layouts: Layouts) -> Floats:
    """Return the seconds of one iteration of each layout, with constants in the order of `CONSTANTS`."""
    at = dict(zip(CONSTANTS, constants.tolist(), strict=True))
    layer_s, head_s = _layer_s(at, layouts), _head_s(at, layouts)
    activations = _HALF * layouts.micro_batch * layouts.sequence * layouts.hidden
    # A micro-batch goes to the next stage and its gradient comes back.
    sends_s = (layouts.pipeline > 1) * 2 * (at["send_latency_s"] + activations / at["tensor_bytes_per_s"])
    stage_s = layouts.layers / layouts.pipeline * layer_s + head_s + sends_s
    first_s = layouts.layers * layer_s + head_s + (layouts.pipeline - 1) * sends_s
    embedding = layouts.vocabulary * layouts.hidden / layouts.tensor
    parameters = 12 * layouts.hidden**2 * layouts.layers / layouts.pipeline / layouts.tensor + embedding
    # The first and the last stage share the embedding, and sum its gradients too.
    summed = _moved(layouts.data) * parameters + (layouts.pipeline > 1) * embedding
    found: Floats = (
        first_s
        + (layouts.num_micro_batches - 1) * stage_s
        + _GRADIENT * summed / at["gradient_bytes_per_s"]
        + parameters * at["update_s_per_parameter"]
        + at["constant_s"]
    )
    return found


def _layer_s(at: Mapping[str, float], layouts: Layouts) -> Floats:
    """Return the forward and backward of one layer and micro-batch."""
    tokens = layouts.micro_batch * layouts.sequence
    flops = (72 * tokens * layouts.hidden**2 + 12 * tokens * layouts.sequence * layouts.hidden) / layouts.tensor
    # 34 bytes a number are kept, 24 of them cut by t, and 5 for each cell of the attention; each is written, and read
    # in the backward, and what makes them reads as much.
    kept = tokens * layouts.hidden * (10 + 24 / layouts.tensor)
    kept = kept + 5 * tokens * layouts.heads * layouts.sequence / layouts.tensor
    reduced = _HALF * tokens * layouts.hidden
    device_s = (
        flops / at["flops_per_s"]
        + 3 * kept / at["memory_bytes_per_s"]
        + 4 * 2 * (layouts.tensor - 1) * at["tensor_latency_s"]
        + 4 * _moved(layouts.tensor) * reduced / at["tensor_bytes_per_s"]
    )
    # All-reduces are launched too.
    launch_s: Floats = at["layer_launch_s"] + 4 * at["tensor_latency_s"] * (layouts.tensor > 1).astype(np.float64)
    return _joined(launch_s, device_s)


def _head_s(at: Mapping[str, float], layouts: Layouts) -> Floats:
    """Return the embedding, logits and loss of one micro-batch, forward and backward."""
    logits = layouts.micro_batch * layouts.sequence * layouts.vocabulary / layouts.tensor
    device_s = 6 * logits * layouts.hidden / at["flops_per_s"] + 16 * logits / at["memory_bytes_per_s"]
    return _joined(np.full_like(device_s, at["head_launch_s"]), device_s)


def _moved(group_size: Floats) -> Floats:
    """Return how many times its bytes a rank of a ring sends in an all-reduce."""
    return 2 * (group_size - 1) / group_size


def _joined(launch_s: Floats, device_s: Floats) -> Floats:
    """Return the time of what is launched while it runs, smooth between the two regimes."""
    longer = np.maximum(launch_s, device_s)
    found: Floats = longer * ((launch_s / longer) ** _NORM + (device_s / longer) ** _NORM) ** (1 / _NORM)
    return found
