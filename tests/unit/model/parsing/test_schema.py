"""The JSON schema says what the parser takes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gscalar.base.errors import SpecError
from gscalar.model.parsing import json_schema, load_spec

TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Return whether a value fits: the keywords that the schema uses, and no others."""
    known = {"$schema", "title", "description", "default", *CHECKS}
    assert set(schema) <= known, set(schema) - known
    return all(CHECKS[word](rule, value, schema) for word, rule in schema.items() if word in CHECKS)


def has_type(rule: str | list[str], value: Any, schema: dict[str, Any]) -> bool:
    names = [rule] if isinstance(rule, str) else rule
    return any(isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def fits_properties(rule: dict[str, Any], value: Any, schema: dict[str, Any]) -> bool:
    return not isinstance(value, dict) or all(accepts(rule[name], value[name]) for name in value if name in rule)


def fits_additional(rule: Any, value: Any, schema: dict[str, Any]) -> bool:
    others = [name for name in value if name not in schema.get("properties", {})] if isinstance(value, dict) else []
    return not others if rule is False else all(accepts(rule, value[name]) for name in others)


CHECKS: dict[str, Any] = {
    "type": has_type,
    "enum": lambda rule, value, schema: value in rule,
    "minimum": lambda rule, value, schema: not is_number(value) or value >= rule,
    "exclusiveMinimum": lambda rule, value, schema: not is_number(value) or value > rule,
    "maximum": lambda rule, value, schema: not is_number(value) or value <= rule,
    "pattern": lambda rule, value, schema: not isinstance(value, str) or re.search(rule, value) is not None,
    "properties": fits_properties,
    "additionalProperties": fits_additional,
    "propertyNames": lambda rule, value, schema: all(accepts(rule, name) for name in value),
    "required": lambda rule, value, schema: not isinstance(value, dict) or set(rule) <= set(value),
    "items": lambda rule, value, schema: not isinstance(value, list) or all(accepts(rule, item) for item in value),
    "minItems": lambda rule, value, schema: not isinstance(value, list) or len(value) >= rule,
    "oneOf": lambda rule, value, schema: sum(accepts(each, value) for each in rule) == 1,
    "anyOf": lambda rule, value, schema: any(accepts(each, value) for each in rule),
}

SPECS: dict[str, tuple[dict[str, Any], bool]] = {
    "the least spec": ({}, True),
    "a list as command": ({"command": ["a", 1, True]}, True),
    "a blank command": ({"command": " "}, False),
    "an empty list as command": ({"command": []}, False),
    "a number": ({"hang_after_s": 3}, True),
    "a number at its excluded limit": ({"hang_after_s": 0}, False),
    "too many workers": ({"workers": 5000}, False),
    "a fraction of a worker": ({"workers": 1.5}, False),
    "a boolean for a number": ({"workers": True}, False),
    "an unknown key": ({"wrokers": 1}, False),
    "an unknown inner key": ({"plan": {"acumulate": 1}}, False),
    "a choice": ({"on_nonfinite": "stop"}, True),
    "an unknown choice": ({"on_nonfinite": "halt"}, False),
    "null where it is allowed": ({"checkpoint": {"every_s": None}, "plan": {"schedule": None}}, True),
    "null where it is not": ({"checkpoint": {"keep": None}}, False),
    "a schedule": ({"plan": {"schedule": {"kind": "wsd", "decay": "sqrt"}}}, True),
    "a schedule without a kind": ({"plan": {"schedule": {"floor": 0}}}, False),
    "a schedule that only one kind fits": ({"plan": {"schedule": {"rise": 0.5}}}, False),
    "a key of another kind": ({"plan": {"schedule": {"kind": "constant", "floor": 0}}}, False),
    "parameter servers": ({"plan": {"sync": {"kind": "parameter_servers", "servers": 2}}}, True),
    "a key of another kind of sync": ({"plan": {"sync": {"servers": 2}}}, False),
    "a sync without its kind": ({"plan": {"sync": {"unused_parameters": True}}}, True),
    "free hyperparameters": ({"config": {"a": [1, {"b": None}]}}, True),
    "tags and variables": ({"tags": {"a": 1}, "env": {"A": "x", "B": 2, "RANKS": 3}}, True),
    "a variable that the launcher sets": ({"env": {"RANK": 1}}, False),
    "a list as a tag": ({"tags": {"a": []}}, False),
    "FLOPs of a sample": ({"flops": {"per_sample": 1e9, "peak_flops_per_s": 1e12}}, True),
    "no FLOPs": ({"flops": {"per_sample": 0}}, False),
    "the shape of a transformer": ({"flops": {"transformer": {"layers": 2, "d_model": 64, "seq": 128}}}, True),
    "no transformer": ({"flops": {"transformer": None}}, True),
    "a number for a transformer": ({"flops": {"transformer": 7}}, False),
    "a slash in a project": ({"project": "a/b"}, False),
}


@pytest.mark.parametrize("sentence", SPECS)
def test_schema_and_parser_agree_on(sentence: str) -> None:
    spec, want = SPECS[sentence]
    spec = {"command": "python train.py", **spec}
    assert accepts(json_schema(), spec) is want
    try:
        load_spec(json.dumps(spec).encode(), "job.yaml", (), {}, {})
    except SpecError:
        assert not want
    else:
        assert want


def places(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = [(path, schema)]
    for name, inner in schema.get("properties", {}).items():
        found += places(inner, f"{path}.{name}")
    for inner in schema.get("oneOf", []):
        found += places(inner, path)
    return found


def test_every_key_is_described_and_its_default_fits() -> None:
    for path, schema in places(json_schema()):
        assert schema.get("description") or schema == {"type": "null"}, path
        if "default" in schema:
            assert accepts(schema, schema["default"]), path


def test_the_schema_is_strict_json() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["command"]
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
