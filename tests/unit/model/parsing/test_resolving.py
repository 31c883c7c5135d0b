"""Which of several values counts, and where it came from."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from gscalar.base.errors import SpecError
from gscalar.model.parsing import load_environment, load_spec, merge_script_arguments, override_spec
from gscalar.model.spec import (
    ConstantSchedule,
    CosineSchedule,
    JobSpec,
    LinearSchedule,
    OneCycleSchedule,
    Origin,
    ResolvedSpec,
)


def resolve(
    text: str = "", *overrides: str, environment: str = "", flags: dict[str, Any] | None = None
) -> ResolvedSpec:
    flags = {"command": ["true"], **(flags or {})}
    return load_spec(text.encode() or None, "job.yaml", overrides, {"GSCALAR_SET": environment}, flags)


SOURCES: dict[Origin, int] = {"flag": 1, "environment": 2, "spec": 3, "script": 4, "default": 0}


@pytest.mark.parametrize("first", range(5))
def test_flags_win_over_environment_spec_script_and_default(first: int) -> None:
    origin = list(SOURCES)[first]
    given = dict(list(SOURCES.items())[first:])
    resolved = resolve(
        f"seed: {given['spec']}" if "spec" in given else "",
        *([f"seed={given['flag']}"] if "flag" in given else []),
        environment=f"seed={given['environment']}" if "environment" in given else "",
    )
    got = merge_script_arguments(resolved, {"seed": given["script"]} if "script" in given else {})
    assert (got.spec.seed, got.origins.get("seed", "default")) == (given[origin], origin)


def test_an_option_with_a_name_wins_over_set_and_one_that_is_absent_says_nothing() -> None:
    got = resolve("name: a", "workers=2", "name=b", flags={"workers": 3, "name": None, "project": "p"})
    assert (got.spec.workers, got.spec.name, got.spec.project) == (3, "b", "p")
    assert got.origins == {"command": "flag", "workers": "flag", "name": "flag", "project": "flag"}


def test_an_option_with_an_impossible_value_is_named() -> None:
    with pytest.raises(SpecError) as caught:
        resolve(flags={"workers": -1})
    assert (caught.value.code, caught.value.where) == ("impossible-value", "--workers")


def test_a_job_without_a_command_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(b"\nseed: 1\n", "job.yaml", (), {}, {})
    assert (caught.value.code, caught.value.where) == ("missing-key", "job.yaml:2:1")


def test_a_script_alone_needs_no_command_and_hears_the_environment() -> None:
    got = load_environment({"GSCALAR_SET": "seed=5"})
    assert got == ResolvedSpec(spec=JobSpec(seed=5), origins={"seed": "environment"})


def test_every_value_that_is_set_has_its_origin() -> None:
    got = resolve(
        "config: {a: {b: 1, c: [1, 2]}, d: {}, e: ~}\nenv: {A: x}\nplan: {schedule: null, clip_norm: 1}\ntags: {}\n",
        "config.a.b=2",
        environment="tags.t=1",
    )
    assert got.origins == {
        "command": "flag",
        "config.a.b": "flag",
        "config.a.c": "spec",
        "config.d": "spec",
        "config.e": "spec",
        "env.A": "spec",
        "plan.schedule": "spec",
        "plan.clip_norm": "spec",
        "tags.t": "environment",
    }


LAYERS = {
    "keys of a mapping are joined": ("config: {a: {b: 1, c: 2}}", "config.a.c=3", "config", {"a": {"b": 1, "c": 3}}),
    "a list is replaced": ("config: {a: [1, 2]}", "config.a=[3]", "config", {"a": [3]}),
    "a kind in the config means nothing": (
        "config: {o: {kind: sgd, lr: 1}}",
        "config.o.kind=adam",
        "config",
        {"o": {"kind": "adam", "lr": 1}},
    ),
    "the same kind keeps the other keys": (
        "plan: {schedule: {kind: cosine, warmup_steps: 5}}",
        "plan.schedule={kind: cosine, floor: 0.1}",
        "plan.schedule",
        CosineSchedule(warmup_steps=5, floor=0.1),
    ),
    "another kind starts from its defaults": (
        "plan: {schedule: {kind: one_cycle, rise: 0.5, total_steps: 9}}",
        "plan.schedule.kind=linear",
        "plan.schedule",
        LinearSchedule(),
    ),
    "one key of a schedule can be set": (
        "plan: {schedule: {kind: one_cycle, rise: 0.5}}",
        "plan.schedule.total_steps=9",
        "plan.schedule",
        OneCycleSchedule(rise=0.5, total_steps=9),
    ),
    "null takes a schedule away": ("plan: {schedule: {kind: constant}}", "plan.schedule=null", "plan.schedule", None),
    "null empties a mapping": ("config: {a: 1}", "config=null", "config", {}),
}  # fmt: skip


@pytest.mark.parametrize("sentence", LAYERS)
def test_set_lies_over_the_spec(sentence: str) -> None:
    text, word, key, want = LAYERS[sentence]
    got: Any = resolve(text, word).spec
    for name in key.split("."):
        got = getattr(got, name)
    assert got == want


def test_a_mistake_that_is_overridden_is_none() -> None:
    assert resolve("workers: 0", "workers=2").spec.workers == 2


# ---- the script's arguments

FILLS: dict[str, tuple[str, dict[str, Any], str, Any]] = {
    "what the job leaves open": ("seed: 3", {"project": "lm", "seed": 9}, "project", "lm"),
    "not what the job sets": ("seed: 0", {"seed": 9}, "seed", 0),
    "a key inside a section": ("plan: {accumulate: 2}", {"plan": {"clip_norm": 1}}, "plan.clip_norm", 1.0),
    "hyperparameters that the job leaves open": (
        "config: {lr: 1}",
        {"config": {"lr": 2, "wd": 3}},
        "config",
        {"lr": 1, "wd": 3},
    ),
    "inner hyperparameters that the job leaves open": (
        "config: {o: {lr: 1}}",
        {"config": {"o": {"lr": 2, "wd": 3}}},
        "config",
        {"o": {"lr": 1, "wd": 3}},
    ),
    "a mapping that the script leaves open": ("config: {o: {x: 1}}", {"config": {"o": {}}}, "config", {"o": {"x": 1}}),
    "the rest of a schedule of the same kind": (
        "plan: {schedule: {kind: cosine, floor: 0.1}}",
        {"plan": {"schedule": {"kind": "cosine", "floor": 0.5, "total_steps": 7}}},
        "plan.schedule",
        CosineSchedule(floor=0.1, total_steps=7),
    ),
    "nothing of a schedule of another kind": (
        "plan: {schedule: {kind: constant}}",
        {"plan": {"schedule": {"kind": "cosine", "warmup_steps": 7}}},
        "plan.schedule",
        ConstantSchedule(),
    ),
    "no schedule where the job says null": (
        "plan: {schedule: null}",
        {"plan": {"schedule": {"kind": "cosine"}}},
        "plan.schedule",
        None,
    ),
    "tags as text": ("", {"tags": {"fold": 3, "best": True}}, "tags", {"fold": "3", "best": "true"}),
    "nothing by None": ("", {"project": None}, "project", "default"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", FILLS)
def test_the_script_fills(sentence: str) -> None:
    text, arguments, key, want = FILLS[sentence]
    merged = merge_script_arguments(resolve(text), arguments)
    got: Any = merged.spec
    for name in key.split("."):
        got = getattr(got, name)
    assert got == want


def test_origins_of_the_job_stay_and_those_of_the_script_are_added() -> None:
    resolved = resolve("config: {lr: 1}", "plan.accumulate=2", environment="tags.a.b=1")
    got = merge_script_arguments(resolved, {"config": {"lr": 2, "wd": 3}, "plan": {"accumulate": 8}})
    assert got.origins == resolved.origins | {"config.wd": "script"}
    assert got.spec.tags == {"a.b": "1"}


def test_the_order_of_hyperparameters_is_the_scripts() -> None:
    got = merge_script_arguments(resolve("config: {b: 1}"), {"config": {"a": 1, "b": 2, "c": 3}})
    assert list(got.spec.config) == ["a", "b", "c"]


class Colour(str, enum.Enum):  # noqa: UP042 - its str() is not its value
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 9


@dataclasses.dataclass
class Config:
    width: int = 3
    path: Path = Path("a/b")


def test_the_scripts_objects_become_plain_values() -> None:
    config = {
        "none": None,
        "tuple": (1, 2.5),
        "colour": Colour.RED,
        "level": Level.HIGH,
        "int": np.int64(3),
        "float": np.float64(0.5),
        "bool": np.bool_(True),
        "array": np.array(7),
        "config": Config(),
    }
    got = merge_script_arguments(resolve(), {"config": config}).spec.config
    want = {
        "none": None,
        "tuple": [1, 2.5],
        "colour": "red",
        "level": 9,
        "int": 3,
        "float": 0.5,
        "bool": True,
        "array": 7,
        "config": {"width": 3, "path": "a/b"},
    }
    assert got == want
    assert [type(value) for value in got.values()] == [type(value) for value in want.values()]


LOOP: dict[str, Any] = {}
LOOP["loop"] = LOOP

SCRIPT_MISTAKES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "an unknown argument": ({"sede": 1}, "unknown-key", "gscalar.init(sede=...)", "Did you mean `seed`?"),
    "an unknown key of the plan": (
        {"plan": {"acumulate": 1}},
        "unknown-key",
        "gscalar.init(plan=...)",
        "`plan.accumulate`",
    ),
    "a wrong type": ({"seed": "x"}, "wrong-type", "gscalar.init(seed=...)", "a whole number"),
    "an impossible value": (
        {"plan": {"accumulate": 0}},
        "impossible-value",
        "gscalar.init(plan=...)",
        "at least 1",
    ),
    "what is decided at launch": ({"workers": 2}, "unknown-key", "gscalar.init(workers=...)", "--set workers="),
    "an object that no file can keep": (
        {"config": {"f": print}},
        "wrong-type",
        "gscalar.init(config=...)",
        "vars(args)",
    ),
    "a key that is no string": ({"config": {1: 2}}, "wrong-type", "gscalar.init(config=...)", "Write '1'."),
    "a mapping that holds itself": ({"config": LOOP}, "wrong-type", "gscalar.init(config=...)", "flat"),
    "text that is no Unicode": ({"config": {"a": "\ud800"}}, "impossible-value", "gscalar.init(config=...)", "JSON"),
    "a name that is no Unicode": ({"tags": {"a": "\ud800"}}, "impossible-value", "gscalar.init(tags=...)", "NUL"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", SCRIPT_MISTAKES)
def test_the_script_is_refused(sentence: str) -> None:
    arguments, code, where, advice = SCRIPT_MISTAKES[sentence]
    with pytest.raises(SpecError) as caught:
        merge_script_arguments(resolve(), arguments)
    assert (caught.value.code, caught.value.where) == (code, where)
    assert advice in caught.value.next_step


STRANGERS = {
    "a typing error in the spec": ("config: {lrr: 1}", (), "job spec, config.lrr", "Did you mean `config.lr`?"),
    "a typing error in a flag": ("", ("config.lrr=1",), "command line, config.lrr", "Did you mean `config.lr`?"),
    "a typing error inside": ("", ("config.o.mu=1",), "command line, config.o.mu", "`beta`"),
}


@pytest.mark.parametrize("sentence", STRANGERS)
def test_a_hyperparameter_that_the_script_does_not_know_is_refused(sentence: str) -> None:
    text, words, where, advice = STRANGERS[sentence]
    resolved = resolve(text, *words)
    arguments = {"config": {"lr": 0.1, "o": {"beta": 1}}}
    with pytest.raises(SpecError) as caught:
        merge_script_arguments(resolved, arguments)
    assert (caught.value.code, caught.value.where) == ("unknown-key", where)
    assert advice in caught.value.next_step
    assert merge_script_arguments(resolved, arguments, strict_config=False).spec.config


def test_what_an_earlier_start_of_the_script_set_does_not_count() -> None:
    before = merge_script_arguments(resolve("seed: 1"), {"config": {"lr": 1, "old": 2}, "project": "p"})
    got = merge_script_arguments(before, {"config": {"lr": 3}})
    assert (got.spec.config, got.spec.project, got.spec.seed) == ({"lr": 3}, "default", 1)
    assert got.origins == {"command": "flag", "seed": "spec", "config.lr": "script"}


def test_a_spec_can_be_overridden_later() -> None:
    before = merge_script_arguments(resolve("plan: {accumulate: 2, clip_norm: 1}\ntags: {a.b: c}"), {"seed": 7})
    got = override_spec(before, ["plan.accumulate=8"], {"workers": 3, "name": None})
    assert (got.spec.plan.accumulate, got.spec.plan.clip_norm, got.spec.workers, got.spec.seed) == (8, 1.0, 3, 7)
    assert got.origins == before.origins | {"plan.accumulate": "flag", "workers": "flag"}
    with pytest.raises(SpecError) as caught:
        override_spec(before, ["plan.acumulate=8"], {})
    assert (caught.value.code, caught.value.where) == ("unknown-key", "--set plan.acumulate=8")


def test_a_script_without_a_config_takes_any_hyperparameter() -> None:
    assert merge_script_arguments(resolve("config: {a: 1}"), {}).spec.config == {"a": 1}


@pytest.mark.parametrize("origin", [each for each in get_args(Origin) if each != "default"])
def test_a_value_of_any_origin_outlives_an_override(origin: Any) -> None:
    before = load_spec(None, "", (), {}, {"command": ["python", "train.py"], "workers": 3})
    told = ResolvedSpec(spec=before.spec, origins=dict.fromkeys(before.origins, origin))
    got = override_spec(told, ["retries=1"], {})
    assert (got.spec.command, got.spec.workers, got.spec.retries) == (("python", "train.py"), 3, 1)
    assert got.origins["workers"] == origin
