"""Messages of Protocol Buffers, against bytes that were put together by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.importers.wire import DELIMITED, VARINT, Messages, WireError, columns, fields, signed
from gscalar.testing.xspaces import delimited, fixed64, message, varint


def places(data: bytes, sizes: list[int]) -> tuple[np.ndarray, Messages]:
    ends = np.cumsum([0, *sizes])
    return np.frombuffer(data, np.uint8), Messages(ends[:-1], ends[1:], np.zeros(len(sizes), np.int64))


def test_the_example_of_the_encoding_guide_is_read() -> None:
    assert list(fields(bytes.fromhex("089601"), 0, 3)) == [(1, VARINT, 150, 3)]
    assert list(fields(bytes.fromhex("120774657374696e67"), 0, 9)) == [(2, DELIMITED, 2, 9)]


def test_fields_are_read_in_any_order_and_absent_ones_are_zero() -> None:
    messages = [varint(1, 7) + varint(2, 300), varint(2, 1), b"", delimited(9, b"skip me") + varint(1, -5)]
    data, where = places(b"".join(messages), [len(each) for each in messages])
    got, _ = columns(data, where, (1, 2))
    assert got[1].tolist() == [7, 0, 0, -5]
    assert got[2].tolist() == [300, 1, 0, 0]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1)), min_size=1, max_size=20))
def test_whole_columns_say_what_field_by_field_reading_says(values: list[tuple[int, int]]) -> None:
    messages = [varint(1, first) + fixed64(3, 1.5) + varint(200, second) for first, second in values]
    data, where = places(b"".join(messages), [len(each) for each in messages])
    got, _ = columns(data, where, (1, 200))
    assert list(zip(got[1].tolist(), got[200].tolist(), strict=True)) == values
    one = {number: value for number, _, value, _ in fields(messages[0], 0, len(messages[0]))}
    assert signed(one[1]) == values[0][0]


def test_messages_inside_are_found_with_the_message_that_they_are_in() -> None:
    inner = [varint(1, 10), varint(1, 20), varint(1, 30)]
    messages = [b"", message(4, inner[0]) + varint(1, 1) + message(4, inner[1]), varint(1, 2), message(4, inner[2])]
    data, where = places(b"".join(messages), [len(each) for each in messages])
    _, nested = columns(data, where, (1,), nested=4)
    got, _ = columns(data, nested, (1,))
    assert nested.owner.tolist() == [1, 1, 3]
    assert got[1].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x08", id="a number without its bytes"),
        pytest.param(b"\x08\xff", id="a number that is cut off"),
        pytest.param(b"\x0a\x05ab", id="a text that is cut off"),
        pytest.param(b"\x0b", id="a group"),
        pytest.param(b"\x09\x00", id="eight bytes that are cut off"),
        pytest.param(b"\x08" + b"\xff" * 11, id="a number of eleven bytes"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        list(fields(data, 0, len(data)))
    with pytest.raises(WireError):
        columns(*places(data, [len(data)]), (1,))
