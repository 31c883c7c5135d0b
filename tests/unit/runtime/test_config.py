"""The script's hyperparameters with the job's values in them."""

from __future__ import annotations

import argparse
import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from gscalar.model.parsing import load_environment, merge_script_arguments
from gscalar.runtime.config import Config, bind_config, config_defaults


@dataclasses.dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    layers: int = 2
    steps: int = dataclasses.field(init=False, default=7)


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


@dataclasses.dataclass(frozen=True)
class Rich:
    """What plain values have no type for."""

    model: Settings = Settings()
    size: Size = Size.SMALL
    data: Path = Path("data")
    betas: tuple[float, float] = (0.9, 0.95)
    sizes: tuple[int, ...] | None = None


DEFAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nothing": (None, {}),
    "a dict": ({"lr": 0.1}, {"lr": 0.1}),
    "a dataclass": (Settings(lr=0.2), {"lr": 0.2, "layers": 2, "steps": 7}),
    "argparse's namespace": (argparse.Namespace(lr=0.1, name="x"), {"lr": 0.1, "name": "x"}),
}


@pytest.mark.parametrize("case", DEFAULTS)
def test_the_scripts_own_values_are_read_from(case: str) -> None:
    given, want = DEFAULTS[case]
    got = config_defaults(given)
    assert got == want
    assert got is not given


@pytest.mark.parametrize("config", [3, "lr=0.1", [("lr", 0.1)]])
def test_a_config_of_another_kind_is_refused_by_name(config: Any) -> None:
    with pytest.raises(TypeError, match=type(config).__name__):
        config_defaults(config)


def test_a_dataclass_comes_back_as_itself_with_the_jobs_values() -> None:
    got = bind_config(Settings(), {"lr": 0.5, "layers": 3, "steps": 9, "else": 1})
    assert got == Settings(lr=0.5, layers=3)


@pytest.mark.parametrize("change", [{}, {"config.model.lr": 0.5, "config.size": "large", "config.betas": "[0.5, 0.6]"}])
def test_nested_dataclasses_paths_enumerations_and_tuples_keep_their_types(change: dict[str, Any]) -> None:
    words = " ".join(f"'{key}={value}'" for key, value in change.items())
    job = load_environment({"GSCALAR_SET": words})
    got = bind_config(Rich(), merge_script_arguments(job, {"config": config_defaults(Rich())}).spec.config)
    want = Rich(model=Settings(lr=0.5), size=Size.LARGE, betas=(0.5, 0.6)) if change else Rich()
    assert got == want
    assert isinstance(got.size, Size)


def test_other_kinds_come_back_as_a_dict_with_attributes() -> None:
    for given in (None, {"lr": 0.1}, argparse.Namespace(lr=0.1)):
        got = bind_config(given, {"lr": 0.5, "nested": {"a": 1}})
        assert isinstance(got, Config)
        assert got.lr == got["lr"] == 0.5
        assert got.nested == {"a": 1}


def test_a_missing_name_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match="config has no 'rate'; it has layers, lr"):
        _ = Config(lr=0.1, layers=2).rate
    with pytest.raises(AttributeError, match="it has nothing"):
        _ = Config().rate
