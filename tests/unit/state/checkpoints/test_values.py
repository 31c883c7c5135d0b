"""Plain values come back as they went in, to the last bit."""

from __future__ import annotations

import math
import random
import struct
import tempfile
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.base.errors import Damaged, UserError
from gscalar.state.checkpoints import read_values, write_values


def round_trip(values: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_values(Path(folder), values)
        return read_values(Path(folder))


def same(one: object, other: object) -> bool:
    """Tell whether two values are equal in type, order of items and every bit of a float."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.sampled_from(["$int", "$", "$items"]), inner)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), PLAIN))
def test_any_plain_value_comes_back_as_it_was(values: dict[str, Any]) -> None:
    assert same(round_trip(values), values)


CASES: dict[str, Any] = {
    "an integer of 100,000 digits": 10**100_000 + 7,
    "its negative": -(10**100_000) - 7,
    "an integer beyond float": 2**63 + 1,
    "negative zero": -0.0,
    "the smallest number": 5e-324,
    "a float with no short decimal": 0.1 + 0.2,
    "NaN": math.nan,
    "infinity": [math.inf, -math.inf],
    "what looks like a mark": {"$int": "0x1", "$float": "nan", "$tuple": []},
    "a mark within a mark": {"$items": [[1, {"$items": []}]]},
    "keys that are equal as text": {1: "number", "1": "text"},
    "the state of Python's generator": random.Random(7).getstate(),
    "text of every plane": "é\u2028\U0001f600\0",
}


@pytest.mark.parametrize("sentence", CASES)
def test_comes_back_as_it_was(sentence: str) -> None:
    values = {"value": CASES[sentence]}
    assert same(round_trip(values), values)


class Colour(str, Enum):  # noqa: UP042  # its str() is 'Colour.RED', and that must not be stored
    RED = "red"


class Level(IntEnum):
    HIGH = 3


def test_subclasses_come_back_as_plain_values() -> None:
    assert same(round_trip({"colour": Colour.RED, "level": Level.HIGH}), {"colour": "red", "level": 3})


def test_equal_values_have_equal_bytes(tmp_path: Path) -> None:
    for name, values in {"one": {"a": 1, "b": {2: 0, 1: 0}}, "two": {"b": {1: 0, 2: 0}, "a": 1}}.items():
        (tmp_path / name).mkdir()
        write_values(tmp_path / name, values)
    assert (tmp_path / "one/state.json").read_bytes() == (tmp_path / "two/state.json").read_bytes()


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: dict[str, tuple[object, str]] = {
    "bytes": ({"codec": [1, {"memory": b"x"}]}, "state['codec'][1]['memory']"),
    "a set": ({"seen": {1}}, "state['seen']"),
    "an object": ({"a": object()}, "state['a']"),
    "a complex number": ({"a": (1, 2j)}, "state['a'][1]"),
    "a key that is a float": ({"a": {0.5: 1}}, "state['a']"),
    "a key that is a truth value": ({"a": {True: 1}}, "state['a']"),
    "half a surrogate pair": ({"a": "\ud83d"}, "state['a']"),
    "a list that holds itself": ({"a": endless()}, "state"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_stored_is_named(sentence: str, tmp_path: Path) -> None:
    values, where = REFUSED[sentence]
    with pytest.raises(UserError) as caught:
        write_values(tmp_path, values)  # type: ignore[arg-type]
    assert caught.value.code == "bad-state"
    assert caught.value.where == where
    assert list(tmp_path.iterdir()) == []


BROKEN = {
    "no JSON": b"{",
    "a list": b"[]",
    "an unknown number": b'{"a": {"$int": "ten"}}',
    "a mark of another type": b'{"a": {"$tuple": 3}}',
    "a dict as a key": b'{"a": {"$items": [[{}, 1]]}}',
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_other_bytes_are_damage(sentence: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_bytes(BROKEN[sentence])
    with pytest.raises(Damaged) as caught:
        read_values(tmp_path)
    assert caught.value.code == "checkpoint-damaged"


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="checkpoint-damaged"):
        read_values(tmp_path)
