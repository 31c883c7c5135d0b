"""A spec survives JSON: what is written to job.json comes back equal."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.base.canonical import json_text
from gscalar.base.errors import SpecError
from gscalar.model.parsing import from_plain, to_plain
from gscalar.model.parsing.shapes import Key, keys_of
from gscalar.model.spec import CosineSchedule, JobSpec, Plan, contradiction

TEXT = st.text(st.characters(exclude_categories=["Cs"], min_codepoint=33), min_size=1, max_size=12).filter(
    lambda text: not set(text) & set("=/")
)
NAMES = st.text("abcXYZ_.:@-9", max_size=9).map("X{}".format)
FREE: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | TEXT
    | st.sampled_from([".inf", "-.inf", "!.nan", "!!.inf"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def values(key: Key) -> st.SearchStrategy[Any]:
    shape, rule = key.shape, key.rule
    match shape.form:
        case "integer":
            least = int(rule.at_least) if rule.at_least is not None else 0
            found: st.SearchStrategy[Any] = st.integers(least, int(rule.at_most or 10**6))
        case "number":
            found = st.floats(rule.at_least or rule.above or 0, rule.at_most or 1e9, exclude_min=rule.above == 0)
        case "boolean":
            found = st.booleans()
        case "string":
            found = TEXT
        case "choice":
            found = st.sampled_from(shape.options)
        case "strings":
            found = st.just(()) | st.lists(TEXT, min_size=1, max_size=3).map(tuple)
        case "string map":
            found = st.dictionaries(NAMES, TEXT, max_size=3)
        case "free map":
            found = st.dictionaries(TEXT, FREE, max_size=4)
        case "section" | "variants":
            found = st.one_of([sections(each) for each in shape.classes])
    return st.none() | found if shape.nullable else found


def sections(section: type) -> st.SearchStrategy[Any]:
    made = st.builds(section, **{name: values(key) for name, key in keys_of(section).items()})
    return made.filter(lambda each: contradiction(each) is None)


def comparable(value: object) -> object:
    # NaN is not equal to itself, and 1 is equal to True.
    if isinstance(value, dict):
        return {name: comparable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else (type(value), value)


@given(sections(JobSpec))
def test_a_spec_comes_back_from_json(spec: JobSpec) -> None:
    got = from_plain(json.loads(json_text(to_plain(spec))))
    assert comparable(got.config) == comparable(spec.config)
    assert dataclasses.replace(got, config={}) == dataclasses.replace(spec, config={})


def test_plain_values_are_those_of_json() -> None:
    spec = JobSpec(
        command=("a", "b"), plan=Plan(schedule=CosineSchedule(floor=0.5)), config={"x": math.inf, "y": ".nan"}
    )
    got = to_plain(spec)
    assert got["command"] == ["a", "b"]
    assert got["plan"]["schedule"] == {"kind": "cosine", "total_steps": None, "warmup_steps": 0, "floor": 0.5}
    assert got["config"] == {"x": ".inf", "y": "!.nan"}
    assert json.loads(json.dumps(got, allow_nan=False)) == got


@pytest.mark.parametrize(
    ("change", "code"),
    [({"sede": 1}, "unknown-key"), ({"seed": "x"}, "wrong-type"), ({"seed": -1}, "impossible-value")],
)
def test_reading_back_is_strict(change: dict[str, Any], code: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_plain(to_plain(JobSpec()) | change)
    assert (caught.value.code, caught.value.where) == (code, "job.json")
