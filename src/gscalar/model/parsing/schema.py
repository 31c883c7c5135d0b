"""The JSON schema of a job spec (draft 2020-12), for editors: `gscalar run --schema`."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from gscalar.model.keys import KeyRule
from gscalar.model.parsing.shapes import Key, Shape, keys_of, variants_of
from gscalar.model.spec import JobSpec

_WORDLIKE = ["string", "number", "boolean"]  # where only strings can stand, a number is taken as written


def json_schema() -> dict[str, Any]:
    """Return the schema. What it accepts, `load_spec` accepts."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gscalar job spec",
        **_section(JobSpec),
        "required": ["command"],
    }


def _section(section: type) -> dict[str, Any]:
    return {
        "type": "object",
        "description": inspect.getdoc(section),
        "properties": {name: _property(key) for name, key in keys_of(section).items()},
        "additionalProperties": False,
    }


def _property(key: Key) -> dict[str, Any]:
    schema = {**_form(key.shape, key.rule), "description": key.rule.doc}
    if (key.shape.form == "section" and not key.shape.nullable) or key.name == "command":
        return schema
    default = key.default
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        default = dataclasses.asdict(default)
        own = next(each for each in schema["oneOf"] if each["properties"]["kind"]["enum"] == [default["kind"]])
        own["required"] = []  # the kind that a mapping without one has
    return {**schema, "default": list(default) if isinstance(default, tuple) else default}


def _form(shape: Shape, rule: KeyRule) -> dict[str, Any]:
    match shape.form:
        case "choice":
            return {"enum": [*shape.options, None]} if shape.nullable else {"enum": list(shape.options)}
        case "strings":
            items = {"type": _WORDLIKE, **_pattern(rule)}
            return {
                "anyOf": [
                    {"type": "string", "pattern": r"\S"},
                    {"type": "array", "items": items, "minItems": 1},
                ]
            }
        case "string map":
            names = {"propertyNames": {"pattern": f"^(?:{rule.name_pattern})$"}} if rule.name_pattern else {}
            return {"type": "object", "additionalProperties": {"type": _WORDLIKE, **_pattern(rule)}, **names}
        case "free map":
            return {"type": "object"}
        case "section" if shape.nullable:
            return {"oneOf": [_section(shape.classes[0]), {"type": "null"}]}
        case "section":
            return _section(shape.classes[0])
        case "variants":
            kinds = [{**_section(each), "required": ["kind"]} for each in variants_of(shape).values()]
            return {"oneOf": [*kinds, {"type": "null"}] if shape.nullable else kinds}
        case form:
            word = {"type": [form, "null"] if shape.nullable else form}
            return word | _limits(rule) | _pattern(rule)


def _limits(rule: KeyRule) -> dict[str, Any]:
    limits = {"minimum": rule.at_least, "exclusiveMinimum": rule.above, "maximum": rule.at_most}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _pattern(rule: KeyRule) -> dict[str, Any]:
    return {"pattern": f"^(?:{rule.pattern})$"} if rule.pattern else {}
