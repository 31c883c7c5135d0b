from __future__ import annotations

import itertools

import numpy as np
import pytest

from gscalar.model.timeline import Floats
from gscalar.prediction.transformer import CONSTANTS, Layouts, fit_transformer, iteration_s

USUAL = np.array([usual for usual, _ in CONSTANTS.values()])
ONE = {
    "global_batch": 16, "micro_batch": 2, "hidden": 1024, "heads": 16, "layers": 24, "sequence": 1024,
    "tensor": 1, "data": 1, "pipeline": 1,
}  # fmt: skip


def layouts(*changes: dict[str, float]) -> Layouts:
    rows = [ONE | each for each in changes]
    return Layouts.of({name: [row[name] for row in rows] for name in ONE})


def constants(**changed: float) -> Floats:
    """Return constants with which nothing costs anything but what is named."""
    free = {name: 1e30 if name.endswith("per_s") else 1e-30 for name in CONSTANTS} | changed
    return np.array([free[name] for name in CONSTANTS])


def every_layout() -> Layouts:
    """Return all layouts of a machine with 2, 4 or 8 GPUs that divide evenly."""
    rows = [
        ONE | {"global_batch": batch, "micro_batch": micro, "hidden": hidden, "layers": layers}
        | {"tensor": t, "data": d, "pipeline": p}
        for t, d, p in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4))
        if t * d * p in (2, 4, 8)
        for hidden, layers, micro, batch in itertools.product((1024, 2048), (12, 24), (1, 2, 4), (8, 16, 32))
        if batch % (micro * d) == 0
    ]  # fmt: skip
    return Layouts.of({name: [row[name] for row in rows] for name in ONE})


def other_machine_s(at: Layouts, draw: np.random.Generator) -> Floats:
    """Return iterations of a machine that is not made as the model is, with a scatter of 3 %.

    Small products are slow (half the speed at 2 GFLOP), all-reduces pass a tree, and the host is ahead of the device
    or is not, without a smooth turn.
    """
    tokens = at.micro_batch * at.sequence
    flops = 72 * tokens * at.hidden**2 * (1 + at.sequence / (6 * at.hidden)) / at.tensor
    speed = 180e12 * (flops / 24) / (flops / 24 + 2e9)
    reduce_s = 4 * np.log2(at.tensor) * 20e-6 + 4 * 2 * (at.tensor > 1) * tokens * at.hidden * 2 / 250e9
    layer_s = np.maximum(1.5e-3 + 2e-4 * (at.tensor > 1), flops / speed + reduce_s + 1.1e-9 * tokens)
    head_s = 6 * tokens * at.hidden * 50e3 / at.tensor / 150e12 + 2e-3
    micro = at.global_batch / at.micro_batch / at.data
    stage_s = at.layers / at.pipeline * layer_s + head_s + (at.pipeline > 1) * 8e-4
    held = (12 * at.hidden**2 * at.layers / at.pipeline + 50e3 * at.hidden) / at.tensor
    time_s = (micro + at.pipeline - 1) * stage_s + (at.data > 1) * held * 8 / 200e9 + held * 2.5e-11 + 4e-3
    return time_s * np.exp(draw.normal(0, 0.03, len(time_s)))


def error(predicted_s: Floats, measured_s: Floats) -> float:
    return float(np.mean(np.abs(predicted_s / measured_s - 1)))


@pytest.mark.parametrize("seed", range(5))
def test_a_third_of_the_layouts_predicts_the_rest_of_another_kind_of_machine(seed: int) -> None:
    at, draw = every_layout(), np.random.default_rng(seed)
    measured_s = other_machine_s(at, draw)
    order = draw.permutation(len(at))
    fitted, tested = order[: len(at) // 3], order[len(at) // 3 :]
    model = fit_transformer(at[fitted], measured_s[fitted])
    assert error(model.predict_s(at[tested]), measured_s[tested]) < 0.08


def test_layouts_of_at_most_4_gpus_predict_those_of_8() -> None:
    at = every_layout()
    measured_s = other_machine_s(at, np.random.default_rng(7))
    few, many = np.flatnonzero(at.num_gpus <= 4), np.flatnonzero(at.num_gpus == 8)
    model = fit_transformer(at[few], measured_s[few])
    assert error(model.predict_s(at[many]), measured_s[many]) < 0.10


def test_the_interval_holds_most_layouts_that_were_not_fitted() -> None:
    at, draw = every_layout(), np.random.default_rng(8)
    measured_s = other_machine_s(at, draw)
    order = draw.permutation(len(at))
    fitted, tested = order[: len(at) // 3], order[len(at) // 3 :]
    low_s, high_s = fit_transformer(at[fitted], measured_s[fitted]).interval_s(at[tested])
    inside = np.mean((low_s <= measured_s[tested]) & (measured_s[tested] <= high_s))
    assert 0.8 < inside < 0.99


def test_the_constants_that_made_the_times_predict_them_again() -> None:
    at = every_layout()
    made_s = iteration_s(USUAL * 2.0, at)
    model = fit_transformer(at, made_s)
    assert error(model.predict_s(at), made_s) < 0.01
    assert list(model.constants) == list(CONSTANTS)


@pytest.mark.parametrize(
    ("what", "costs", "changes", "want"),
    [
        ("a pipeline waits (m + p - 1) / m", {"layer_launch_s": 1.0}, {"pipeline": 4}, 24 / 4 * (8 + 4 - 1)),
        ("one stage launches each layer of each micro-batch", {"layer_launch_s": 1.0}, {}, 24 * 8),
        ("data parallelism divides the micro-batches", {"layer_launch_s": 1.0}, {"data": 4}, 24 * 2),
        ("a model of one GPU sums no gradients", {"gradient_bytes_per_s": 1.0}, {}, 0.0),
        (
            "a ring sends gradients 2 (d - 1) / d times",
            {"gradient_bytes_per_s": 1.0},
            {"data": 4},
            4 * 1.5 * (12 * 1024**2 * 24 + 51_200 * 1024),
        ),
        (
            "each GPU updates its part of the parameters",
            {"update_s_per_parameter": 1.0},
            {"tensor": 2, "pipeline": 2},
            (12 * 1024**2 * 24 / 2 + 51_200 * 1024) / 2,
        ),
        ("an iteration pays its constant once", {"constant_s": 5.0}, {}, 5.0),
        ("one GPU has no all-reduce in a layer", {"tensor_latency_s": 1.0}, {}, 0.0),
    ],
)
def test_a_cost_alone_is_what_the_layout_pays_of_it(
    what: str, costs: dict[str, float], changes: dict[str, float], want: float
) -> None:
    (got,) = iteration_s(constants(**costs), layouts(changes))
    assert got == pytest.approx(want, rel=1e-6, abs=1e-9), what


def test_matrix_products_take_their_flops_where_nothing_else_costs() -> None:
    (got,) = iteration_s(constants(flops_per_s=1e12), layouts({}))
    tokens = 2 * 1024
    layer = 72 * tokens * 1024**2 + 12 * tokens * 1024 * 1024
    head = 6 * tokens * 1024 * 51_200
    assert got == pytest.approx(8 * (24 * layer + head) / 1e12, rel=1e-6)


def test_launch_and_device_join_smoothly_and_neither_hides_the_other_where_they_are_equal() -> None:
    (device,) = iteration_s(constants(flops_per_s=1e12), layouts({"layers": 240}))
    launch = device / 240 / 8  # nearly what a layer takes: the head is small beside 240 layers
    (both,) = iteration_s(constants(flops_per_s=1e12, layer_launch_s=launch), layouts({"layers": 240}))
    assert both == pytest.approx(device * 2**0.25, rel=0.01)


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AssertionError, match="unequal"):
        Layouts.of({name: [1.0] if name == "hidden" else [1.0, 2.0] for name in ONE})
    with pytest.raises(AssertionError, match="positive"):
        layouts({"tensor": 0})
