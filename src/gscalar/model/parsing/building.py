"""From a tree to the spec's dataclasses, field by field, by their types and rules.

Goes on after a mistake, so that all mistakes of one spec are told at once. A value that is no scalar
of the wanted type is `wrong-type`; one of the right type that can never work is `impossible-value`.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

from gscalar.base.errors import SpecError
from gscalar.model.keys import KeyRule
from gscalar.model.parsing.shapes import Key, Shape, expectation, keys_of, variants_of
from gscalar.model.parsing.tree import Items, Leaf, Node, Path, Table, dotted, settings
from gscalar.model.spec import JobSpec, Origin, contradiction

_INT64: Final = range(-(2**63), 2**63)
_MAX_SHOWN: Final = 10
_NUMERAL: Final = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")
_OLD_BOOLEANS: Final = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def build_spec(tree: Table, *, needs_command: bool) -> tuple[JobSpec, dict[str, Origin]]:
    """Return the spec of a tree, and the origin of each value that is set.

    Raises:
        SpecError: the first mistake, which also names the others.
    """
    builder = Builder()
    spec = builder.section(JobSpec, tree, ())
    assert isinstance(spec, JobSpec)
    if needs_command and "command" not in tree.entries:
        builder.errors.append(
            SpecError(
                code="missing-key",
                what="`command` is missing: the job does not say what to run.",
                where=tree.where or None,
                next_step="Write `command: python train.py`, or end the line with `-- python train.py`.",
            )
        )
    raise_all(builder.errors)
    return spec, builder.origins


def raise_all(errors: list[SpecError]) -> None:
    """Raise the first error, if any, with the others named in its message."""
    if not errors:
        return
    first, *others = errors
    lines = [first.next_step]
    lines += [f"also: {error.message().splitlines()[0]}" for error in others[:_MAX_SHOWN]]
    if len(others) > _MAX_SHOWN:
        lines.append(f"also: {len(others) - _MAX_SHOWN} more")
    raise SpecError(
        code=first.code, what=first.what, value=first.value, where=first.where, next_step="\n  ".join(lines)
    )


class Builder:
    """Builds sections; keeps the mistakes and the origins it met on the way."""

    def __init__(self) -> None:
        self.errors: list[SpecError] = []
        self.origins: dict[str, Origin] = {}

    def section(self, kind: type, table: Table, path: Path) -> Any:
        """Return the dataclass of a table; a key with a mistake keeps its default."""
        known = keys_of(kind)
        values: dict[str, Any] = {}
        for name, entry in table.entries.items():
            try:
                if name not in known:
                    raise unknown_key(name, entry.where, path, known)
                if not _is_absent(known[name].shape, entry.node):
                    values[name] = self._value(known[name], entry.node, (*path, name))
            except SpecError as error:
                self.errors.append(error)
        made = kind(**values)
        wrong = contradiction(made)
        if wrong is not None:
            name, why = wrong
            where = table.entries[name].where if name in table.entries else table.where
            self.errors.append(
                SpecError(
                    code="impossible-value",
                    what=f"`{dotted((*path, name))}`: {why}.",
                    where=where,
                    next_step="Change one of the two.",
                )
            )
        return made

    def _value(self, key: Key, node: Node, path: Path) -> Any:
        if key.shape.nullable and isinstance(node, Leaf) and node.value is None:
            value: Any = None
        elif key.shape.form in ("section", "variants"):
            return self._inner_section(key, node, path)
        else:
            value = _READ[key.shape.form](node, key, path)
        for place, setting in settings(node, path):
            # An empty mapping sets nothing, unless it is itself a value in `config`.
            if not isinstance(setting, Table) or len(place) > 1:
                self.origins[dotted(place)] = setting.origin
        return value

    def _inner_section(self, key: Key, node: Node, path: Path) -> Any:
        if not isinstance(node, Table):
            _refuse_type(key, node, path)
        if key.shape.form == "section":
            return self.section(key.shape.classes[0], node, path)
        variants = variants_of(key.shape)
        entry = node.entries.get("kind")
        if entry is None and key.default is not None:
            return self.section(type(key.default), node, path)
        if entry is None:
            raise SpecError(
                code="missing-key",
                what=f"`{dotted(path)}` takes {expectation(key.shape, key.rule)}, and `kind` is missing",
                where=node.where,
                next_step=f"Add a kind, such as `kind: {next(iter(variants))}`.",
            )
        kind = Key("kind", Shape("choice", options=tuple(variants)), KeyRule(doc=""), None)
        return self.section(variants[_read_choice(entry.node, kind, (*path, "kind"))], node, path)


def _is_absent(shape: Shape, node: Node) -> bool:
    # `config:` with nothing under it (all commented out, say) is an empty mapping, not a mistake.
    mapping = shape.form in ("section", "string map", "free map")
    return mapping and not shape.nullable and isinstance(node, Leaf) and node.value is None


def unknown_key(name: str, where: str, path: Path, known: Iterable[str]) -> SpecError:
    """Return the error for a key that does not exist, with the nearest one that does."""
    return SpecError(
        code="unknown-key",
        what=f"`{dotted((*path, name))}` is not a key of the job spec",
        where=where,
        next_step=_advice(name, path, list(known)),
    )


def _advice(name: str, path: Path, known: list[str]) -> str:
    before, colon, _ = name.partition(":")
    if colon and before in known:
        return f"Write a space after the colon: `{before}: ...`."
    elsewhere = [place for place in _all_paths(JobSpec, ()) if place[-1] == name]
    if elsewhere and not path:
        return f"Did you mean `{dotted(elsewhere[0])}`?"
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"Did you mean `{dotted((*path, near[0]))}`?"
    advice = "Known keys here: " + ", ".join(f"`{each}`" for each in known) + "."
    return advice if path else f"A hyperparameter of the script is `config.{name}`. {advice}"


def _all_paths(section: type, path: Path) -> Iterator[Path]:
    for name, key in keys_of(section).items():
        yield (*path, name)
        for inner in key.shape.classes:
            yield from _all_paths(inner, (*path, name))


def _read_integer(node: Node, key: Key, path: Path) -> int:
    value = node.value if isinstance(node, Leaf) else None
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse_type(key, node, path)
    if value not in _INT64:
        _refuse_value(key, node, path)
    _check_limits(value, key, node, path)
    return value


def _read_number(node: Node, key: Key, path: Path) -> float:
    value = node.value if isinstance(node, Leaf) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        _refuse_type(key, node, path)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _refuse_value(key, node, path, f"Write a finite number{' or null' if key.shape.nullable else ''}.")
    _check_limits(number, key, node, path)
    return number


def _read_boolean(node: Node, key: Key, path: Path) -> bool:
    if not isinstance(node, Leaf) or not isinstance(node.value, bool):
        _refuse_type(key, node, path)
    return node.value


def _read_string(node: Node, key: Key, path: Path) -> str:
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        _refuse_type(key, node, path)
    return _checked_text(node.value, key, node, path)


def _read_choice(node: Node, key: Key, path: Path) -> str:
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        _refuse_type(key, node, path)
    if node.value not in key.shape.options:
        near = difflib.get_close_matches(node.value, key.shape.options, n=1)
        _refuse_value(key, node, path, f"Did you mean `{near[0]}`?" if near else "")
    return node.value


def _read_strings(node: Node, key: Key, path: Path) -> tuple[str, ...]:
    if isinstance(node, Leaf) and isinstance(node.value, str):
        try:
            words = shlex.split(node.value)
        except ValueError as error:
            _refuse_value(key, node, path, f"Mend the quotes ({error}), or write a list.")
        texts = tuple(_checked_text(word, key, node, path) for word in words)
    elif isinstance(node, Items):
        texts = tuple(
            _checked_text(_text(item, key, (*path, str(index))), key, item, (*path, str(index)))
            for index, item in enumerate(node.items)
        )
    else:
        _refuse_type(key, node, path)
    if not texts or not texts[0]:
        _refuse_value(key, node, path, "Name a program, such as `python train.py`.")
    return texts


def _read_string_map(node: Node, key: Key, path: Path) -> dict[str, str]:
    if not isinstance(node, Table):
        _refuse_type(key, node, path)
    texts = {}
    for name, entry in node.entries.items():
        if not re.fullmatch(key.rule.name_pattern or ".*", name, re.DOTALL) or not _is_unicode(name):
            raise SpecError(
                code="impossible-value",
                what=f"A name in `{dotted(path)}` cannot be used",
                value=name,
                where=entry.where,
                next_step=f"Allowed: {key.rule.names_expect}.",
            )
        value = _text(entry.node, key, (*path, name))
        texts[name] = _checked_text(value, key, entry.node, (*path, name))
    return texts


def _text(node: Node, key: Key, path: Path) -> str:
    # Where only strings can stand, a number is taken as it is written: 1.10 stays 1.10.
    if not isinstance(node, Leaf) or (node.value is None and node.text != ""):
        _refuse_type(Key(key.name, Shape("string"), KeyRule(doc=""), None), node, path)
    return node.text


def _read_free_map(node: Node, key: Key, path: Path) -> dict[str, Any]:
    if not isinstance(node, Table):
        _refuse_type(key, node, path)
    return {name: _free_value(entry.node, (*path, name)) for name, entry in node.entries.items()}


def _free_value(node: Node, path: Path) -> Any:
    if isinstance(node, Items):
        return [_free_value(item, (*path, str(index))) for index, item in enumerate(node.items)]
    problem = None
    if isinstance(node, Table):
        if all(_is_unicode(name) for name in node.entries):
            return {name: _free_value(entry.node, (*path, name)) for name, entry in node.entries.items()}
        problem = "has a name that is no Unicode text"
    elif isinstance(node.value, str):
        problem = None if _is_unicode(node.value) else "is no Unicode text"
    elif isinstance(node.value, int):
        problem = None if node.value in _INT64 else "needs more than 64 bits; quote it if it is no number"
    elif isinstance(node.value, float) and math.isinf(node.value) and "inf" not in node.text.lower():
        problem = "is too large for a number of 64 bits"
    if problem is None:
        assert isinstance(node, Leaf)
        return node.value
    raise SpecError(
        code="impossible-value",
        what=f"`{dotted(path)}` {problem}",
        value=_shown(node),
        where=node.where,
        next_step="Give a value that JSON can hold.",
    )


_READ: Final = {
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "string": _read_string,
    "choice": _read_choice,
    "strings": _read_strings,
    "string map": _read_string_map,
    "free map": _read_free_map,
}


def _is_unicode(text: str) -> bool:
    # Arguments that are no UTF-8 reach Python as lone surrogates, which no JSON file can keep.
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _checked_text(text: str, key: Key, node: Node, path: Path) -> str:
    if not _is_unicode(text) or not re.fullmatch(key.rule.pattern or ".*", text, re.DOTALL):
        raise SpecError(
            code="impossible-value",
            what=f"`{dotted(path)}` cannot have this text",
            value=text if len(text) <= 80 else text[:77] + "...",
            where=node.where,
            next_step=f"Allowed: {key.rule.expects or 'Unicode text'}.",
        )
    return text


def _check_limits(value: float, key: Key, node: Node, path: Path) -> None:
    rule = key.rule
    if (
        (rule.at_least is not None and value < rule.at_least)
        or (rule.above is not None and value <= rule.above)
        or (rule.at_most is not None and value > rule.at_most)
    ):
        _refuse_value(key, node, path)


def _refuse_value(key: Key, node: Node, path: Path, next_step: str = "") -> NoReturn:
    takes = expectation(key.shape, key.rule)
    raise SpecError(
        code="impossible-value",
        what=f"`{dotted(path)}` takes {takes}",
        value=_shown(node),
        where=node.where,
        next_step=next_step or f"Give {takes}.",
    )


def _refuse_type(key: Key, node: Node, path: Path) -> NoReturn:
    takes = expectation(key.shape, key.rule)
    unseen = ""
    if not isinstance(node, Leaf):
        unseen = ", not a list" if isinstance(node, Items) else ", not a mapping"
    elif node.value is None:
        unseen = ", not null"
    raise SpecError(
        code="wrong-type",
        what=f"`{dotted(path)}` takes {takes}{unseen}",
        value=_shown(node),
        where=node.where,
        next_step=_type_advice(key.shape, node) or f"Give {takes}.",
    )


def _type_advice(shape: Shape, node: Node) -> str:
    """Return the one small change that would do, where there is one."""
    if not isinstance(node, Leaf):
        return ""
    value = node.value
    if shape.form == "integer" and isinstance(value, float) and math.isfinite(value) and value == int(value):
        return f"Write {int(value)}."
    if shape.form in ("integer", "number") and isinstance(value, str) and _NUMERAL.fullmatch(value):
        return f"Write {value} without quotes."
    if shape.form == "boolean" and isinstance(value, str) and value.lower() in _OLD_BOOLEANS:
        return f"`{value}` is a word in YAML 1.2: write {_OLD_BOOLEANS[value.lower()]}."
    if shape.form == "string" and value is not None:
        return f'Put it in quotes: "{node.text}".'
    if shape.form == "variants" and isinstance(value, str) and value in variants_of(shape):
        return f"Write {{kind: {value}}}."
    return ""


def _shown(node: Node) -> object:
    if not isinstance(node, Leaf):
        return None
    if isinstance(node.value, str) and len(node.value) > 80:
        return node.value[:77] + "..."
    return node.value if len(node.text) <= 80 else node.text[:77] + "..."
