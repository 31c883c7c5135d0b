"""What is trained: updates, clipping, and a state that is kept by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gscalar.base.errors import ScalarError
from gscalar.model.spec import ConstantSchedule, Plan
from gscalar.runtime.framework import Snapshot

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gscalar.frameworks.torch.trainee import TorchTrainee

pytestmark = pytest.mark.torch


def make_model(width: int = 5) -> nn.Module:
    import torch
    from torch import nn

    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


def adopt(*objects: Any, place: Any, **plan: Any) -> TorchTrainee:
    from gscalar.frameworks.torch.adapter import TorchFramework

    trainee, _ = TorchFramework().adopt(objects, Plan(**plan), place())
    return trainee


def step(trainee: TorchTrainee, seed: int = 0, clip_norm: float | None = None, scale: float = 1.0) -> Any:
    import torch

    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    for model in trainee.models:
        trainee.backward(model(x).square().mean() * 10, 1.0)
    return trainee.update(scale=scale, clip_norm=clip_norm, lr_factor=None)


def through_json(snapshot: Snapshot) -> Snapshot:
    return Snapshot(arrays=snapshot.arrays, values=json.loads(json.dumps(snapshot.values)))


def flat(model: nn.Module) -> torch.Tensor:
    import torch

    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


# ---- updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [0.5, 1e6])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_clipping_is_that_of_torch(clip_norm: float, scale: float, place: Any) -> None:
    import torch

    ours, theirs = make_model(), make_model()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    trainee = adopt(ours, torch.optim.SGD(ours.parameters(), lr=0.1), place=place)
    for number in range(3):
        got = step(trainee, number, clip_norm, scale)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        (theirs(x).square().mean() * 10 * scale).backward()
        want = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        assert got.grad_norm == pytest.approx(float(want), rel=1e-5)
        assert torch.allclose(flat(ours), flat(theirs), rtol=1e-6, atol=1e-7)


def test_a_norm_that_is_not_finite_is_told_and_not_hidden(place: Any) -> None:
    import torch

    model = make_model()
    trainee = adopt(model, torch.optim.SGD(model.parameters(), lr=0.1), place=place)
    trainee.backward(model(torch.full((2, 4), float("nan"))).mean(), 1.0)
    update = trainee.update(scale=1.0, clip_norm=1.0, lr_factor=None)
    assert update.grad_norm != update.grad_norm
    assert not torch.isfinite(flat(model)).all()


def test_a_parameter_that_two_optimizers_share_is_scaled_once(place: Any) -> None:
    import torch

    moved = []
    for scale in (1.0, 0.5):
        model = make_model()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(model[0].parameters(), lr=0.1)]
        trainee = adopt(model, *optimizers, place=place)
        before = flat(model)
        step(trainee, scale=scale)
        moved.append(flat(model) - before)
    assert torch.allclose(moved[1], moved[0] * 0.5, atol=1e-7)


def test_every_group_keeps_its_own_rate_under_a_schedule_of_the_plan(place: Any) -> None:
    import torch

    model = make_model()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.01}]
    optimizer = torch.optim.SGD(groups)
    trainee = adopt(model, optimizer, place=place)
    for factor in (0.5, 0.25):
        assert trainee.update(scale=1.0, clip_norm=None, lr_factor=factor).lr == pytest.approx(0.1 * factor)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1 * factor, 0.01 * factor])


def test_a_schedule_of_the_scripts_own_moves_once_an_update(place: Any) -> None:
    import torch

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    trainee = adopt(model, optimizer, schedule, place=place)
    assert [step(trainee).lr for _ in range(5)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


def test_a_schedule_of_the_script_and_one_of_the_plan_are_one_too_many(place: Any) -> None:
    import torch

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    with pytest.raises(ScalarError) as caught:
        adopt(model, optimizer, schedule, place=place, schedule=ConstantSchedule())
    assert caught.value.code == "schedule-twice"


def test_the_first_parameter_that_is_not_finite_is_named_before_any_gradient(place: Any) -> None:
    import torch

    from gscalar.frameworks.torch.adapter import TorchFramework

    tools = TorchFramework().tools()
    first_nonfinite = tools.first_nonfinite
    model = make_model()
    trainee = adopt(model, torch.optim.SGD(model.parameters(), lr=0.1), place=place)
    assert first_nonfinite(trainee) == ""
    assert tools.gradients_finite(trainee)  # there is none yet
    trainee.backward(model(torch.full((2, 4), float("inf"))).mean(), 1.0)
    assert first_nonfinite(trainee) == "0.weight.grad"
    assert not tools.gradients_finite(trainee)
    with torch.no_grad():
        model[2].bias.fill_(float("nan"))
    assert first_nonfinite(trainee) == "2.bias"


# ---- the state ------------------------------------------------------------------------------------


def decayed(model: nn.Module, names: tuple[str, ...], *, turned: bool = False) -> torch.optim.Optimizer:
    """Return AdamW with two groups, weights with decay and biases without, in either order."""
    import torch

    groups = [
        {"params": [p for name, p in model.named_parameters() if name.endswith("weight")], "weight_decay": 0.5},
        {
            "params": [p for name, p in model.named_parameters() if name.endswith("bias")],
            "weight_decay": 0.0,
            "lr": 0.2,
        },
    ]
    if turned:
        groups = [{**group, "params": list(reversed(group["params"]))} for group in reversed(groups)]  # type: ignore[call-overload]
    return torch.optim.AdamW(groups, lr=0.1)


def test_optimizer_state_survives_another_order_of_groups_and_parameters(place: Any) -> None:
    import torch

    undisturbed = make_model()
    trainee = adopt(undisturbed, decayed(undisturbed, ()), place=place)
    for number in range(3):
        step(trainee, number)
    snapshot = through_json(trainee.snapshot())
    step(trainee, 3)
    resumed = make_model()
    optimizer = decayed(resumed, (), turned=True)
    again = adopt(resumed, optimizer, place=place)
    again.restore(snapshot)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.5]
    step(again, 3)
    assert torch.equal(flat(resumed), flat(undisturbed))


MISFITS: dict[str, Any] = {
    "another width": lambda torch: [m := make_model(6), torch.optim.AdamW(m.parameters())],
    "another depth": lambda torch: [m := torch.nn.Linear(4, 1), torch.optim.AdamW(m.parameters())],
    "fewer parameters to train": lambda torch: [m := make_model(), torch.optim.AdamW(m[0].parameters())],
    "other groups": lambda torch: [m := make_model(), decayed(m, ())],
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_checkpoint_that_does_not_fit_is_refused(case: str, place: Any) -> None:
    import torch

    model = make_model()
    trainee = adopt(model, torch.optim.AdamW(model.parameters()), place=place)
    step(trainee)
    snapshot = through_json(trainee.snapshot())
    with pytest.raises(ScalarError) as caught:
        adopt(*MISFITS[case](torch), place=place).restore(snapshot)
    assert caught.value.code == "state-mismatch"


SCHEDULES: dict[str, Any] = {
    "StepLR": lambda lr, optimizer: lr.StepLR(optimizer, step_size=2, gamma=0.5),
    "LambdaLR": lambda lr, optimizer: lr.LambdaLR(optimizer, lambda number: 0.9**number),
    "CosineAnnealingLR": lambda lr, optimizer: lr.CosineAnnealingLR(optimizer, T_max=7),
    "OneCycleLR": lambda lr, optimizer: lr.OneCycleLR(optimizer, max_lr=0.3, total_steps=9),
    "SequentialLR": lambda lr, optimizer: lr.SequentialLR(
        optimizer, [lr.ConstantLR(optimizer, 0.1), lr.ExponentialLR(optimizer, 0.9)], milestones=[2]
    ),
}


@pytest.mark.parametrize("case", SCHEDULES)
@pytest.mark.filterwarnings("ignore:The epoch parameter in")
def test_a_schedule_goes_on_where_it_was(case: str, place: Any) -> None:
    import torch

    def make() -> TorchTrainee:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return adopt(model, optimizer, SCHEDULES[case](torch.optim.lr_scheduler, optimizer), place=place)

    undisturbed = make()
    rates = [step(undisturbed, number).lr for number in range(3)]
    snapshot = through_json(undisturbed.snapshot())
    rates += [step(undisturbed, number).lr for number in range(3, 7)]
    assert len(set(rates)) > 2
    again = make()
    again.restore(snapshot)
    assert [step(again, number).lr for number in range(3, 7)] == rates[3:]
    assert torch.equal(flat(again.models[0]), flat(undisturbed.models[0]))


OPTIMIZERS: dict[str, Any] = {
    "SGD without momentum": lambda optim, parameters: optim.SGD(parameters, lr=0.1),
    "Adam with a rate on the device": lambda optim, parameters: optim.Adam(parameters, lr=_tensor(0.1), foreach=False),
    "Adagrad": lambda optim, parameters: optim.Adagrad(parameters, lr=0.1),
    "RMSprop, centred": lambda optim, parameters: optim.RMSprop(parameters, lr=0.1, centered=True, momentum=0.5),
    "ASGD": lambda optim, parameters: optim.ASGD(parameters, lr=0.1),
    "Rprop": lambda optim, parameters: optim.Rprop(parameters, lr=0.1),
}


def _tensor(value: float) -> torch.Tensor:
    import torch

    return torch.tensor(value)


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_an_optimizer_goes_on_bit_by_bit(case: str, place: Any) -> None:
    import torch

    def make() -> TorchTrainee:
        model = make_model()
        return adopt(model, OPTIMIZERS[case](torch.optim, model.parameters()), place=place)

    undisturbed, again = make(), make()
    for number in range(3):
        step(undisturbed, number)
    again.restore(through_json(undisturbed.snapshot()))
    for number in range(3, 6):
        step(undisturbed, number)
        step(again, number)
    assert torch.equal(flat(again.models[0]), flat(undisturbed.models[0]))


def test_several_models_and_optimizers_keep_apart(place: Any) -> None:
    import torch

    def make() -> TorchTrainee:
        first, second = make_model(), make_model(7)
        optimizers = [torch.optim.AdamW(first.parameters(), lr=0.1), torch.optim.SGD(second.parameters(), 0.1, 0.9)]
        return adopt(first, *optimizers, second, place=place)

    undisturbed, again = make(), make()
    step(undisturbed)
    again.restore(through_json(undisturbed.snapshot()))
    step(undisturbed, 1)
    step(again, 1)
    for got, want in zip(again.models, undisturbed.models, strict=True):
        assert torch.equal(flat(got), flat(want))


def test_what_a_model_keeps_beside_tensors_comes_back(place: Any) -> None:
    import torch
    from torch import nn

    class Counting(nn.Linear):
        seen = 0

        def get_extra_state(self) -> Any:
            return {"seen": self.seen}

        def set_extra_state(self, state: Any) -> None:
            self.seen = state["seen"]

    models = [nn.Sequential(Counting(4, 1), nn.BatchNorm1d(1)) for _ in range(2)]
    trainees = [adopt(model, torch.optim.SGD(model.parameters(), lr=0.1), place=place) for model in models]
    models[0][0].seen = 5
    step(trainees[0])
    trainees[1].restore(through_json(trainees[0].snapshot()))
    assert models[1][0].seen == 5
    assert torch.equal(models[1][1].running_mean, models[0][1].running_mean)
    assert models[1][1].num_batches_tracked == 1
