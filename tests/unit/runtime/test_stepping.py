"""The step engine: weights, borders and what ranks agree on, with a trainee and a group that only listen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gscalar.base.errors import UserError
from gscalar.model.shares import Share
from gscalar.observation.collectives import CollectiveLedger
from gscalar.runtime.cursor import Cursor
from gscalar.runtime.framework import Batch, Update
from gscalar.runtime.stepping import OwnPart, StepEngine, StepResult


class Listening:
    """A trainee and a group: keeps every call, and adds what other ranks would add to a sum."""

    def __init__(self, others: Sequence[Sequence[float]] = ()) -> None:
        self.others = others
        self.calls: list[tuple[str, Any]] = []
        self.sums: list[list[float]] = []

    def expect(self, *, border: bool) -> None:
        self.calls.append(("expect", border))

    def backward(self, loss: Any, weight: float, when_computed: Callable[[], None] | None = None) -> None:
        self.calls.append(("backward", weight))
        if when_computed is not None:
            when_computed()
            self.calls.append(("computed", None))

    def update(self, *, scale: float, clip_norm: float | None, lr_factor: float | None) -> Update:
        self.calls.append(("update", (scale, clip_norm, lr_factor)))
        return Update(lr=0.1, grad_norm=None)

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        self.calls.append(("start_sum", None))
        self.sums.append(list(values))
        return lambda: [sum(column) for column in zip(values, *self.others, strict=True)]

    def of(self, kind: str) -> list[Any]:
        return [value for name, value in self.calls if name == kind]


def make_engine(listening: Listening, world: int = 1, accumulate: int = 1, **options: Any) -> StepEngine:
    settings: dict[str, Any] = {"clip_norm": None, "check_every_loss": False, **options}
    engine = StepEngine(
        listening,  # type: ignore[arg-type]
        listening,  # type: ignore[arg-type]
        world=world,
        accumulate=accumulate,
        scalar=lambda value: lambda: float(value),
        ledger=CollectiveLedger(),
        **settings,
    )
    engine.expect(None)
    return engine


def batch(num_samples: int = 4, group_samples: int | None = None, *, ends_epoch: bool = False) -> Batch:
    return Batch(None, num_samples, group_samples, Cursor(), ends_epoch)


def micro_step(
    engine: StepEngine, of: Batch | None, loss: float = 1.0, *, weight: float | None = None, tokens: float | None = None
) -> StepResult | None:
    """Do what `run.step` does; None inside an accumulated step."""
    engine.expect(of)
    engine.backward(loss, weight=weight, tokens=tokens, stop=False, checkpoint=False)
    if not engine.at_border:
        return None
    agreement, scale = engine.sync()
    return engine.update(agreement, scale, None)


def others(
    weight: float, samples: float, tokens: float = 0.0, micro_steps: float = 1, unscaled: float = 0
) -> list[float]:
    """What another rank adds to the sum."""
    return [weight, samples, tokens, 0.0, 0.0, 0.0, micro_steps, unscaled]


# ---- weights --------------------------------------------------------------------------------------


def test_a_known_number_of_samples_goes_into_the_loss_and_nothing_is_scaled_later() -> None:
    listening = Listening([others(2, 2)])
    micro_step(make_engine(listening, world=2), batch(4, group_samples=6))
    assert listening.of("backward") == [4 * 2 / 6]
    assert listening.of("update") == [(1.0, None, None)]


def test_a_given_weight_is_summed_over_ranks_and_scales_the_gradient_later() -> None:
    listening = Listening([others(10.0, 4, unscaled=1)])
    micro_step(make_engine(listening, world=2), batch(4, group_samples=8), weight=30.0)
    assert listening.of("backward") == [30.0]
    assert listening.of("update") == [(2 / 40.0, None, None)]


def test_samples_that_are_not_known_in_advance_weigh_like_a_given_weight() -> None:
    listening = Listening([others(2, 2, unscaled=1)])
    micro_step(make_engine(listening, world=2), batch(6))
    assert listening.of("backward") == [6.0]
    assert listening.of("update") == [(2 / 8.0, None, None)]


def test_micro_steps_of_an_accumulated_step_share_one_weight() -> None:
    listening = Listening()
    engine = make_engine(listening, accumulate=3)
    for num_samples in (4, 4, 2):
        micro_step(engine, batch(num_samples, group_samples=10))
    assert listening.of("backward") == [0.4, 0.4, 0.2]
    assert len(listening.of("update")) == 1


@pytest.mark.parametrize("weight", [None, 7.0], ids=["without a weight", "with a weight"])
def test_padding_has_no_weight_and_its_tokens_do_not_count(weight: float | None) -> None:
    listening = Listening([others(5, 5, 50, unscaled=weight is not None)])
    result = micro_step(make_engine(listening, world=2), batch(0, group_samples=5), weight=weight, tokens=9)
    assert listening.of("backward") == [0.0]
    assert result is not None
    assert (result.agreement.samples, result.agreement.tokens) == (5.0, 50.0)


def test_a_loop_without_batches_weighs_every_micro_step_alike() -> None:
    listening = Listening([others(2, 2, micro_steps=2, unscaled=2)])
    engine = make_engine(listening, world=2, accumulate=2)
    assert micro_step(engine, None) is None
    assert micro_step(engine, None) is not None
    assert listening.of("backward") == [1.0, 1.0]
    assert listening.of("update") == [(2 / 4, None, None)]


UNKNOWN = math.nan
# What the micro-steps of one step were given, as (batch, weight, tokens), and this rank's own part of it.
OWN_PARTS: dict[str, tuple[list[tuple[Batch | None, float | None, float | None]], OwnPart]] = {
    "one batch": ([(batch(4, 6), None, None)], OwnPart(4.0, 0.0, 4.0)),
    "a batch weighed by its tokens": ([(batch(4), 30.0, 32.0)], OwnPart(4.0, 32.0, 30.0)),
    "two micro-steps": ([(batch(4), 30.0, 32.0), (batch(2), 10.0, 16.0)], OwnPart(6.0, 48.0, 40.0)),
    "padding": ([(batch(0, 6), None, 9.0)], OwnPart(0.0, 0.0, 0.0)),
    "a batch that the run does not see": ([(None, None, 16.0)], OwnPart(UNKNOWN, 16.0, UNKNOWN)),
    "a batch that the run does not see, with a weight": ([(None, 5.0, None)], OwnPart(UNKNOWN, 0.0, 5.0)),
    "one seen and one not": ([(batch(4), None, None), (None, None, None)], OwnPart(UNKNOWN, 0.0, UNKNOWN)),
}


@pytest.mark.parametrize("sentence", OWN_PARTS)
def test_a_step_knows_this_ranks_own_part_of_it(sentence: str) -> None:
    given, want = OWN_PARTS[sentence]
    known = given[0][0] is not None and given[0][0].group_samples is not None
    other = others(100, 100, 1000, micro_steps=len(given), unscaled=0 if known else len(given))
    engine = make_engine(Listening([other]), world=2, accumulate=len(given))
    for _ in range(2):  # the next step begins anew
        *_, last = (micro_step(engine, of, weight=weight, tokens=tokens) for of, weight, tokens in given)
        assert last is not None
        assert last.own == pytest.approx(want, nan_ok=True)


def test_weights_that_sum_to_nothing_move_nothing_and_do_not_divide_by_zero() -> None:
    listening = Listening()
    micro_step(make_engine(listening), batch(4), weight=0.0)
    assert listening.of("update") == [(0.0, None, None)]


MIXED = {
    "another rank gives none": (1, [others(4, 4)], [2.0]),
    "another micro-step has none": (2, [], [2.0, None]),
    "the micro-step before had none": (2, [], [None, 2.0]),
}


@pytest.mark.parametrize("case", MIXED)
def test_a_weight_in_some_micro_steps_and_not_in_others_is_refused(case: str) -> None:
    accumulate, from_others, weights = MIXED[case]
    engine = make_engine(Listening(from_others), world=1 + len(from_others), accumulate=accumulate)

    def train() -> None:
        for weight in weights:
            micro_step(engine, batch(4, group_samples=8), weight=weight)

    with pytest.raises(UserError) as caught:
        train()
    assert caught.value.code == "mixed-weights"


# ---- borders --------------------------------------------------------------------------------------


def test_only_the_last_micro_step_exchanges_gradients_and_sums() -> None:
    listening = Listening()
    engine = make_engine(listening, accumulate=3)
    del listening.calls[:]
    moved = [micro_step(engine, batch(1, group_samples=3)) is not None for _ in range(6)]
    assert moved == [False, False, True] * 2
    forwards = [(name, value) for name, value in listening.calls if name in ("expect", "start_sum", "update")]
    inside, border = [("expect", False)], [("expect", True), ("start_sum", None)]
    one_step = [*inside * 2, *border, ("update", (1.0, None, None)), ("expect", False)]
    assert forwards == one_step * 2


def test_the_sum_begins_when_this_rank_has_computed() -> None:
    listening = Listening()
    micro_step(make_engine(listening), batch())
    names = [name for name, _ in listening.calls]
    assert names.index("backward") < names.index("start_sum") < names.index("computed")


def test_the_end_of_an_epoch_ends_an_accumulated_step() -> None:
    listening = Listening()
    engine = make_engine(listening, accumulate=3)
    shares = [batch(2, 6), batch(2, 6), batch(2, 6), batch(2, 3), batch(1, 3, ends_epoch=True), batch(2, 6)]
    moved = [micro_step(engine, share) is not None for share in shares]
    assert moved == [False, False, True, False, True, False]
    assert listening.of("backward")[3:5] == [2 / 3, 1 / 3]
    assert [values[6] for values in listening.sums] == [3, 2]


def test_the_batches_say_how_many_micro_steps_make_a_step_where_that_is_not_the_plans_number() -> None:
    engine = make_engine(Listening())
    shares = [Share(0, 0, first, first + 4) for first in (0, 4, 8)]
    ends = [micro_step(engine, replace(batch(group_samples=12), step_size=3, shares=(share,))) for share in shares]
    assert [end is None for end in ends] == [True, True, False]
    assert ends[2] is not None
    assert ends[2].shares == tuple(shares)
    following = micro_step(engine, batch(group_samples=4))
    assert following is not None
    assert following.shares == ()


def test_a_batch_that_the_script_passes_over_is_no_share_of_the_step() -> None:
    engine = make_engine(Listening())
    engine.expect(replace(batch(group_samples=4), shares=(Share(0, 0, 0, 4),)))
    result = micro_step(engine, replace(batch(group_samples=4), shares=(Share(0, 0, 4, 8),)))
    assert result is not None
    assert result.shares == (Share(0, 0, 4, 8),)


def test_without_accumulation_every_step_is_a_border_before_its_first_batch_too() -> None:
    listening = Listening()
    assert make_engine(listening).at_border
    assert listening.of("expect") == [True]
    assert not make_engine(Listening(), accumulate=2).at_border


# ---- what ranks agree on --------------------------------------------------------------------------

WISHES = {
    "a stop that this rank was asked for": (True, False, [], (True, False)),
    "a stop that another rank was asked for": (False, False, [[1, 1, 0, 1, 0, 0, 1, 0]], (True, False)),
    "a checkpoint that rank 0 finds due": (False, False, [[1, 1, 0, 0, 1, 0, 1, 0]], (False, True)),
    "a checkpoint wished here": (False, True, [], (False, True)),
    "nothing": (False, False, [[1, 1, 0, 0, 0, 0, 1, 0]], (False, False)),
}


@pytest.mark.parametrize("case", WISHES)
def test_all_ranks_act_on_the_wish_of_one(case: str) -> None:
    stop, checkpoint, from_others, want = WISHES[case]
    engine = make_engine(Listening(from_others), world=1 + len(from_others))
    engine.expect(batch(1, group_samples=2))
    engine.backward(1.0, weight=None, tokens=None, stop=stop, checkpoint=checkpoint)
    agreement, _ = engine.sync()
    assert (agreement.stop, agreement.checkpoint) == want
    assert not agreement.nonfinite


def test_a_loss_that_is_not_finite_is_told_to_all_ranks_where_every_loss_is_looked_at() -> None:
    for loss, checks, want in (
        (math.nan, True, True),
        (math.inf, True, True),
        (1.0, True, False),
        (math.nan, False, False),
    ):
        engine = make_engine(Listening(), check_every_loss=checks)
        engine.expect(batch())
        engine.backward(loss, weight=None, tokens=None, stop=False, checkpoint=False)
        assert engine.nonfinite is want
        assert engine.sync()[0].nonfinite is want
    engine = make_engine(Listening([[1, 1, 0, 0, 0, 1, 1, 1]]), world=2, check_every_loss=True)
    engine.expect(batch())
    engine.backward(1.0, weight=None, tokens=None, stop=False, checkpoint=False)
    assert not engine.nonfinite
    assert engine.sync()[0].nonfinite


def test_the_loss_of_padding_is_nobodys_business() -> None:
    engine = make_engine(Listening(), check_every_loss=True)
    engine.expect(batch(0, group_samples=3))
    engine.backward(math.nan, weight=None, tokens=None, stop=False, checkpoint=False)
    assert not engine.sync()[0].nonfinite


def test_totals_are_those_of_all_ranks_and_begin_anew_with_each_step() -> None:
    listening = Listening([others(3, 3, 30)])
    engine = make_engine(listening, world=2)
    for _ in range(2):
        result = micro_step(engine, batch(4, group_samples=7), tokens=40.0)
        assert result is not None
        assert (result.agreement.samples, result.agreement.tokens) == (7.0, 70.0)


# ---- results --------------------------------------------------------------------------------------

LOSSES = {
    "one micro-step": ([(2.5, 4)], 2.5),
    "weighted by samples": ([(1.0, 3), (5.0, 1)], 2.0),
    "padding among others": ([(1.0, 2), (100.0, 0)], 1.0),
    "padding that is not finite": ([(1.0, 2), (math.nan, 0)], 1.0),
}


@pytest.mark.parametrize("case", LOSSES)
def test_the_loss_of_a_step_is_the_weighted_mean_of_its_micro_steps(case: str) -> None:
    losses, want = LOSSES[case]
    engine = make_engine(Listening(), accumulate=len(losses))
    total = sum(samples for _, samples in losses)
    results = [micro_step(engine, batch(samples, total), loss) for loss, samples in losses]
    assert results[-1] is not None
    assert results[-1].loss() == want


def test_the_rate_and_the_limit_reach_the_trainee() -> None:
    listening = Listening()
    engine = make_engine(listening, clip_norm=0.5)
    engine.expect(batch())
    engine.backward(1.0, weight=None, tokens=None, stop=False, checkpoint=False)
    agreement, scale = engine.sync()
    result = engine.update(agreement, scale, 0.25)
    assert listening.of("update") == [(0.25, 0.5, 0.25)]
    assert result.update.lr == 0.1
