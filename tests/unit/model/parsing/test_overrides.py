"""`key=value` words set any key of the spec."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.base.errors import SpecError
from gscalar.model.parsing import load_spec
from gscalar.model.parsing.overrides import read_overrides
from gscalar.model.parsing.tree import dotted, plain_value

GOOD: dict[str, tuple[list[str], dict[str, Any]]] = {
    "a whole number": (["plan.accumulate=4"], {"plan": {"accumulate": 4}}),
    "a number with an exponent": (["config.lr=3e-4"], {"config": {"lr": 3e-4}}),
    "a word": (["elastic=off"], {"elastic": "off"}),
    "a value with an equals sign": (["config.a=b=c"], {"config": {"a": "b=c"}}),
    "nothing is null": (["name="], {"name": None}),
    "a quoted string": (['name="7"'], {"name": "7"}),
    "a list": (["config.layers=[64, 32]"], {"config": {"layers": [64, 32]}}),
    "a whole part": (
        ["plan.schedule={kind: cosine, floor: 0.1}"],
        {"plan": {"schedule": {"kind": "cosine", "floor": 0.1}}},
    ),
    "a nested hyperparameter": (["config.opt.betas.a=1"], {"config": {"opt": {"betas": {"a": 1}}}}),
    "a name with a dot in quotes": (['config."a.b".c=1'], {"config": {"a.b": {"c": 1}}}),
    "a tag's name may hold dots": (["tags.team.name=x"], {"tags": {"team.name": "x"}}),
    "words for one part are joined": (
        ["plan.schedule.kind=linear", "plan.schedule.floor=0"],
        {"plan": {"schedule": {"kind": "linear", "floor": 0}}},
    ),
    "the later of two words counts": (["seed=1", "seed=2"], {"seed": 2}),
    "blanks around are ignored": ([" seed = 1 "], {"seed": 1}),
}


@pytest.mark.parametrize("sentence", GOOD)
def test_reads(sentence: str) -> None:
    words, want = GOOD[sentence]
    assert plain_value(read_overrides(words, "--set", "flag")) == want


BAD = {
    "no equals sign": ("plan.accumulate", "bad-override", "--set"),
    "no key": ("=4", "bad-override", "--set"),
    "an empty part": ("plan..accumulate=4", "bad-override", "--set"),
    "a point at the end": ("plan.=4", "bad-override", "--set"),
    "an open quote": ('config."a=1', "bad-override", "--set"),
    "a bad escape": (r'config."\q"=1', "bad-override", "--set"),
    "a path without end": (".".join("a" * 40) + "=1", "bad-override", "--set"),
    "a value that is no YAML": ("seed={", "bad-override", "--set seed={"),
    "an alias": ("config.a=*b", "bad-override", "--set config.a=*b"),
    "an unknown key": ("plan.acumulate=4", "unknown-key", "--set plan.acumulate=4"),
    "a wrong type": ("workers=two", "wrong-type", "--set workers=two"),
    "an impossible value": ("workers=0", "impossible-value", "--set workers=0"),
    "a key below a number": ("workers.a=1", "wrong-type", "--set workers.a=1"),
    "a schedule without a kind": ("plan.schedule.floor=0", "missing-key", "--set plan.schedule.floor=0"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_refuses(sentence: str) -> None:
    word, code, where = BAD[sentence]
    with pytest.raises(SpecError) as caught:
        load_spec(None, "", [word], {}, {"command": ["true"]})
    assert (caught.value.code, caught.value.where) == (code, where)


def test_words_of_the_environment_are_quoted_as_for_a_shell() -> None:
    environment = {"GSCALAR_SET": "seed=3 'config.note=two words' plan.accumulate=2"}
    spec = load_spec(None, "", (), environment, {"command": ["true"]}).spec
    assert (spec.seed, spec.config, spec.plan.accumulate) == (3, {"note": "two words"}, 2)


@pytest.mark.parametrize(
    ("line", "where"), [("a='b", "GSCALAR_SET"), ("seed=x", "GSCALAR_SET seed=x"), ("seed", "GSCALAR_SET")]
)
def test_a_mistake_in_the_environment_is_named_there(line: str, where: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(None, "", (), {"GSCALAR_SET": line}, {"command": ["true"]})
    assert caught.value.where == where


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_a_path_that_is_shown_can_be_typed(names: list[str]) -> None:
    path = ("config", *names)
    got = plain_value(read_overrides([f"{dotted(path)}=1"], "--set", "flag"))
    for name in path:
        got = got[name]
    assert got == 1


@given(st.text(max_size=30) | st.builds("{}={}".format, st.sampled_from(["seed", "plan", "tags.a"]), st.text()))
def test_words_of_any_kind_raise_nothing_but_a_spec_error(word: str) -> None:
    with contextlib.suppress(SpecError):
        load_spec(None, "", [word], {}, {"command": ["true"]})
