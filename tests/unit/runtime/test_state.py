"""`run.state`: what a script may keep in it, and what comes back after a resume."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gscalar.base.errors import TrainingError
from gscalar.runtime.cursor import Cursor, OrderFacts
from gscalar.runtime.state import RunState

ORDER = OrderFacts(size=40, seed=2**62, shuffle=True, listed=False, global_batch=16, batch_size=8, world=2)


class Average:
    """An object with a state of its own."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.value = state_dict["value"]


def through_a_checkpoint(state: RunState, into: RunState | None = None) -> RunState:
    restored = into or RunState()
    restored.restore(json.loads(json.dumps(state.to_plain())))
    return restored


def full_state() -> RunState:
    state = RunState()
    state.step, state.tokens, state.samples = 12, 1e6, 96.0
    state.cursors["data0"] = Cursor(1, 32, 9)
    state.orders["data0"] = ORDER
    state.data_states["data0"] = {"at": 3}
    state["best"] = {"loss": 0.5, "names": ["a", None]}
    state["average"] = Average(2.5)
    return state


def test_counters_cursors_and_values_come_back() -> None:
    restored = through_a_checkpoint(full_state())
    assert (restored.step, restored.tokens, restored.samples) == (12, 1e6, 96.0)
    assert restored.cursors == {"data0": Cursor(1, 32, 9)}
    assert restored.orders == {"data0": ORDER}
    assert restored.data_states == {"data0": {"at": 3}}
    assert restored["best"] == {"loss": 0.5, "names": ["a", None]}
    assert restored.setdefault("best", 9.9) == {"loss": 0.5, "names": ["a", None]}


def test_an_object_gets_its_state_back_when_the_script_gives_it() -> None:
    before = Average()
    given_before = RunState()
    given_before["average"] = before
    through_a_checkpoint(full_state(), given_before)
    assert before.value == 2.5
    restored = through_a_checkpoint(full_state())
    after = Average()
    restored["average"] = after
    assert after.value == 2.5
    assert restored["average"] is after


def test_the_state_of_an_object_that_the_script_has_not_given_yet_is_not_lost() -> None:
    once = through_a_checkpoint(full_state())
    twice = through_a_checkpoint(once)
    late = Average()
    twice["average"] = late
    assert late.value == 2.5


def test_it_is_a_mapping_of_what_the_script_put_in() -> None:
    state = full_state()
    assert sorted(state) == ["average", "best"]
    assert len(state) == 2
    del state["average"], state["best"]
    assert "best" not in state
    with pytest.raises(KeyError):
        del state["best"]


def test_a_value_may_be_replaced_by_an_object_of_the_same_name_and_back() -> None:
    state = RunState()
    state["x"] = 1
    state["x"] = Average(3.0)
    assert list(state) == ["x"]
    state["x"] = 2
    assert (list(state), state["x"]) == (["x"], 2)
    assert through_a_checkpoint(state)["x"] == 2


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {"deep": [object()]}])
def test_what_no_checkpoint_could_hold_is_refused_at_once_with_its_name(value: Any) -> None:
    with pytest.raises(TrainingError, match=r"run.state\['mine'\]") as caught:
        RunState()["mine"] = value
    assert caught.value.code == "bad-state"


def test_the_epoch_is_that_of_the_first_data_object() -> None:
    state = RunState()
    assert state.epoch == 0
    state.cursors["data0"] = Cursor(epoch=3)
    state.cursors["data1"] = Cursor(epoch=1)
    assert state.epoch == 3


def test_a_snapshot_of_the_state_is_not_changed_by_what_the_training_does_later() -> None:
    state = full_state()
    plain = state.to_plain()
    state["best"]["loss"] = 0.1
    state["average"].value = 9.0
    state.cursors["data0"] = Cursor(2, 0, 12)
    assert plain["values"]["best"]["loss"] == 0.5
    assert plain["objects"]["average"] == {"value": 2.5}
    assert plain["cursors"]["data0"]["epoch"] == 1
