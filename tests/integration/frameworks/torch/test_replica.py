"""An adopted model is the user's own model, and yet exchanges gradients when it should, and only then."""

from __future__ import annotations

import copy
import io
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gscalar.model.spec import AllReduce, Plan

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gscalar.frameworks.torch.replica import RoutedForward

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).parent / "scripts" / "replica.py"


def make_model() -> nn.Module:
    import torch
    from torch import nn

    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))


def adopt(model: nn.Module, world: int = 2, **plan: Any) -> RoutedForward:
    import torch

    from gscalar.frameworks.torch.replica import route

    return route(model, Plan(**plan), world=world, device=torch.device("cpu"))


def batch(size: int = 4) -> torch.Tensor:
    import torch

    return torch.randn(size, 6, generator=torch.Generator().manual_seed(2))


# ---- still the user's own -------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2])
def test_class_keys_and_parameters_stay(world: int, process_group: Any) -> None:
    from torch import nn

    model = make_model()
    keys, parameters = list(model.state_dict()), list(model.parameters())
    adopt(model, world)
    assert type(model) is nn.Sequential
    assert list(model.state_dict()) == keys
    assert [id(parameter) for parameter in model.parameters()] == [id(parameter) for parameter in parameters]
    assert [name for name, _ in model.named_modules()] == ["", "0", "1", "2", "3"]
    assert isinstance(model[0], nn.Linear)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_adopting_changes_no_weight_no_buffer_and_draws_no_random_number(process_group: Any) -> None:
    import torch

    plain, adopted = make_model(), make_model()
    state = torch.get_rng_state()
    adopt(adopted)
    assert torch.equal(torch.get_rng_state(), state)
    for (name, value), other in zip(plain.state_dict().items(), adopted.state_dict().values(), strict=True):
        assert torch.equal(value, other), name


COPIES: dict[str, Callable[[Any], Any]] = {"a deep copy": copy.deepcopy, "a saved and loaded model": lambda m: saved(m)}


def saved(model: nn.Module) -> nn.Module:
    import torch

    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("case", COPIES)
def test_is_a_plain_model_that_exchanges_nothing(case: str, process_group: Any) -> None:
    import torch

    model = make_model()
    routed = adopt(model, precision="bf16")
    calls = count_exchanges(routed)
    copied = COPIES[case](model)
    assert type(copied) is type(model)
    assert isinstance(copied.forward, types.MethodType)
    assert copied.forward.__self__ is copied
    copied(batch()).sum().backward()
    assert calls == []
    assert all(parameter.grad is None for parameter in model.parameters()), "it has parameters of its own"
    with torch.no_grad():
        copied[3].bias.add_(1.0)
    assert not torch.equal(copied[3].bias, model[3].bias)
    again = copy.deepcopy(copied)
    assert again.forward.__self__ is again


# ---- precision ------------------------------------------------------------------------------------


def outputs() -> dict[str, Callable[[Any], Any]]:
    from collections import namedtuple

    Pair = namedtuple("Pair", "first second")

    class Output(dict[str, Any]):
        """As model libraries have them."""

    return {
        "a tensor": lambda y: y,
        "a tuple": lambda y: (y, 3),
        "a list": lambda y: [y, None],
        "a dict": lambda y: {"logits": y, "name": "x"},
        "a named tuple": lambda y: Pair(y, y),
        "a dict of a class of its own": lambda y: Output(logits=y),
    }


@pytest.mark.parametrize("case", outputs())
def test_bf16_computes_in_bf16_and_returns_float32_in(case: str) -> None:
    import torch
    from torch import nn

    wrap = outputs()[case]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.linear(x)
            self.computed = y.dtype
            return wrap(y)

    model = Model()
    adopt(model, world=1, precision="bf16")
    result = model(batch())
    assert model.computed is torch.bfloat16
    assert type(result) is type(wrap(torch.zeros(1))) or "class of its own" in case
    values = result.values() if isinstance(result, dict) else result if isinstance(result, list | tuple) else [result]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    assert tensors
    assert all(value.dtype is torch.float32 for value in tensors)
    assert model.linear.weight.dtype is torch.float32


def test_a_model_without_parameters_computes_in_bf16_too() -> None:
    import torch

    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.T

    model, exact = Product(), batch() @ batch().T
    adopt(model, precision="bf16")
    assert model(batch()).dtype is torch.float32
    assert not torch.equal(model(batch()), exact)


def test_fp32_leaves_every_type_alone() -> None:
    import torch

    model = make_model().double()
    adopt(model, world=1)
    assert model(batch().double()).dtype is torch.float64
    half = torch.nn.Linear(6, 2).bfloat16()
    adopt(half, world=1)
    assert half(batch().bfloat16()).dtype is torch.bfloat16


# ---- when gradients are exchanged -----------------------------------------------------------------


def count_exchanges(routed: RoutedForward) -> list[list[int]]:
    """Return a list that gets, for each bucket that is exchanged, the sizes of its gradients in order."""
    calls: list[list[int]] = []

    def exchange(bucket: Any) -> Any:
        import torch

        calls.append([gradient.numel() for gradient in bucket.gradients()])
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    assert routed.ddp is not None
    routed.exchange = exchange  # type: ignore[assignment]
    return calls


def test_only_the_backward_of_a_border_exchanges_from_the_very_first_on(process_group: Any) -> None:
    model = make_model()
    routed = adopt(model)
    calls = count_exchanges(routed)
    for _ in range(3):
        for border, want in ((False, 0), (False, 0), (True, 1)):
            calls.clear()
            routed.expect(border)
            model(batch()).sum().backward()
            assert len(calls) == want


def test_the_buckets_are_the_same_in_the_first_step_as_in_all_later_ones(process_group: Any) -> None:
    from torch import nn

    # More than the 1 MiB of the first bucket, so that there are several.
    model = nn.Sequential(*[nn.Linear(260, 260) for _ in range(6)], nn.Linear(260, 6))
    routed = adopt(model)
    calls = count_exchanges(routed)
    steps = []
    for _ in range(4):
        calls.clear()
        model(batch().repeat(1, 44)[:, :260]).sum().backward()
        steps.append([list(call) for call in calls])
    assert len(steps[0]) > 1
    assert steps[1:] == steps[:1] * 3


def test_an_evaluation_and_a_forward_without_gradients_exchange_nothing(process_group: Any) -> None:
    import torch

    model = make_model()
    routed = adopt(model)
    calls = count_exchanges(routed)
    routed.evaluating = True
    model(batch()).sum().backward()
    routed.evaluating = False
    with torch.no_grad():
        model(batch())
    assert calls == []
    model(batch()).sum().backward()
    assert len(calls) == 1


def test_parameters_that_get_no_gradient_are_allowed_where_the_plan_says_so(process_group: Any) -> None:
    from torch import nn

    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.used(x)
            return result

    model = Forked()
    adopt(model, sync=AllReduce(unused_parameters=True))
    for _ in range(3):
        model(batch()).sum().backward()
    assert model.used.weight.grad is not None


def test_a_model_without_trainable_parameters_needs_no_exchange() -> None:
    model = make_model().requires_grad_(False)
    assert adopt(model, world=2).ddp is None
    assert model(batch()).shape == (4, 3)


# ---- two real ranks -------------------------------------------------------------------------------


def test_on_two_ranks_buffers_follow_rank_0_and_uneven_evaluations_do_not_wait(
    gang: Callable[..., None], tmp_path: Path
) -> None:
    gang(SCRIPT, 2, tmp_path)
    told = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [each["evaluated"] for each in told] == [3, 12]
    assert [each["met"] for each in told] == [[7, 2], [7]]
    assert told[0]["weights"] == told[1]["weights"]
    assert told[0]["means"] == told[1]["means"]
    assert len(told[0]["means"]) == 3
    assert told[0]["reduced"] == told[1]["reduced"] == pytest.approx((1.0 + 2.0 * 3) / 4)
    assert told[0]["reduced_before_prepare"] == told[1]["reduced_before_prepare"] == pytest.approx(0.5)
