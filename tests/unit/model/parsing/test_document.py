"""A file becomes a tree with places, or is refused at a place."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gscalar.base.errors import SpecError
from gscalar.model.parsing.document import MAX_BYTES, read_document, read_value
from gscalar.model.parsing.tree import Items, Leaf, Table, plain_value

GOOD = {
    "flow and block style mean the same": (b"a: {b: [1, x]}\n", {"a": {"b": [1, "x"]}}),
    "a quoted number is a string": (b"a: '1'\nb: \"2\"\n", {"a": "1", "b": "2"}),
    "keys are words as they are written": (b"1: a\noff: b\n~: c\n", {"1": "a", "off": "b", "~": "c"}),
    "an alias repeats a value": (b"a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
    "a byte order mark is ignored": (b"\xef\xbb\xbfa: 1\n", {"a": 1}),
    "text may be of any script": ("a: \u00e9\u4e2d\U0001f600\n".encode(), {"a": "\u00e9\u4e2d\U0001f600"}),
    "Windows line ends are line ends": (b"a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
    "a document may be marked": (b"%YAML 1.2\n---\na: 1\n...\n", {"a": 1}),
    "a core tag gives the type": (
        b"a: !!str 1\nb: !!float 2\nc: !!int '3'\nd: !!map {}\ne: !!seq []\nf: ! off\n",
        {"a": "1", "b": 2.0, "c": 3, "d": {}, "e": [], "f": "off"},
    ),
    "a folded text is one string": (b"a: >-\n  b\n  c\n", {"a": "b c"}),
}


@pytest.mark.parametrize("sentence", GOOD)
def test_reads(sentence: str) -> None:
    text, want = GOOD[sentence]
    got = plain_value(read_document(text, "job.yaml"))
    assert got == want
    assert list(map(type, got.values())) == list(map(type, want.values()))


BOMB = b"a0: &a0 [x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)
)
TOWER = b"a0: &a0 [x]\n" + b"".join(
    b"a%d: &a%d %s*a%d%s\n" % (n, n, b"[" * 40, n - 1, b"]" * 40) for n in range(1, 500)
)
BAD = {
    "an empty file holds no keys": (b"", "bad-yaml", "1:1"),
    "a file of comments holds no keys": (b"# a\n# b\n", "bad-yaml", "1:1"),
    "an empty document holds no keys": (b"---\n", "bad-yaml", "2:1"),
    "a list is no spec": (b"- a\n", "bad-yaml", "1:1"),
    "a word is no spec": (b"\n  train\n", "bad-yaml", "2:3"),
    "two documents are one too many": (b"a: 1\n---\nb: 2\n", "bad-yaml", "2:1"),
    "another version of YAML is refused": (b"%YAML 1.1\n---\na: 1\n", "bad-yaml", "1:1"),
    "a brace that is not closed is named": (b"a: {b: 1\nc: 2\n", "bad-yaml", "2:2"),
    "a tab cannot indent": (b"a:\n\tb: 1\n", "bad-yaml", "2:1"),
    "a colon inside a plain value is named": (b"a: b: c\n", "bad-yaml", "1:5"),
    "a control character is named": (b"a: 1\nb: x\x07\n", "bad-yaml", "2:5"),
    "an escape beyond Unicode is named": (b'a: 1\nb: "\\UFFFFFFFF"\n', "bad-yaml", "2:1"),
    "half of a surrogate pair is named": (b'a: "\\ud83d"\n', "bad-yaml", "1:4"),
    "a key that stands twice is named": (b"a: 1\nb: 2\na: 3\n", "duplicate-key", "3:1"),
    "a key that stands twice inside is named": (b"a: {b: 1, 'b': 2}\n", "duplicate-key", "1:11"),
    "a list as a key is refused": (b"? [a]\n: 1\n", "bad-yaml", "1:3"),
    "a merge key is refused": (b"a: &x {b: 1}\nc:\n  <<: *x\n", "bad-yaml", "3:3"),
    "an alias without an anchor is named": (b"a: *x\n", "bad-yaml", "1:4"),
    "an alias inside its own anchor is refused": (b"a: &x [1, *x]\n", "bad-yaml", "1:11"),
    "aliases that multiply are refused": (BOMB, "bad-yaml", "6:10"),
    "aliases that pile up are refused": (TOWER, "bad-yaml", "3:49"),
    "values nested without end are refused": (b"a: " + b"[" * 5000, "bad-yaml", "1:68"),
    "a tag that makes an object is refused": (b"a: !!python/name:os.system\n", "bad-yaml", "1:4"),
    "an own tag on a mapping is refused": (b"a: !thing {b: 1}\n", "bad-yaml", "1:4"),
    "a value that does not fit its tag is named": (b"a: !!int x\n", "bad-yaml", "1:4"),
    "Latin-1 is refused": ("a: 1\nb: \u00e9\n".encode("latin-1"), "bad-encoding", "2:4"),
    "UTF-16 is refused": ("a: 1\n".encode("utf-16"), "bad-encoding", "1:1"),
    "UTF-16 without a mark is refused": ("a: 1\n".encode("utf-16-le"), "bad-encoding", "1:2"),
    "a cut character is refused": (b"\xef\xbb\xbfa: \xe4\xb8", "bad-encoding", "1:4"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_refuses(sentence: str) -> None:
    text, code, place = BAD[sentence]
    with pytest.raises(SpecError) as caught:
        read_document(text, "job.yaml")
    assert (caught.value.code, caught.value.where) == (code, f"job.yaml:{place}")
    assert caught.value.next_step


def test_an_alias_inside_its_own_anchor_is_told_from_one_without_an_anchor() -> None:
    with pytest.raises(SpecError, match="stands inside its own anchor"):
        read_document(b"a: &x {b: *x}\n", "job.yaml")


def test_the_offset_of_a_byte_that_is_no_utf8_is_said() -> None:
    with pytest.raises(SpecError, match=r"byte 0xe9 is no UTF-8, at offset 8\."):
        read_document(b"a: 1\nb: \xe9\n", "job.yaml")


def test_a_file_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(SpecError, match="has 262145 bytes"):
        read_document(b"\xff" * (MAX_BYTES + 1), "job.yaml")


def test_values_keep_their_text_and_their_places() -> None:
    got = read_document(b"a:\n  b: [0o17, 1.10]\n", "job.yaml")
    inner = got.entries["a"].node
    assert isinstance(inner, Table)
    assert inner.entries["b"].where == "job.yaml:2:3"
    assert inner.entries["b"].node == Items(
        (
            Leaf(15, "0o17", "job.yaml:2:7", "spec"),
            Leaf(1.1, "1.10", "job.yaml:2:13", "spec"),
        ),
        "job.yaml:2:6",
        "spec",
    )


def test_a_value_alone_has_one_place_and_its_own_code() -> None:
    assert read_value("3e-4", "--set a=3e-4", "flag") == Leaf(3e-4, "3e-4", "--set a=3e-4", "flag")
    with pytest.raises(SpecError) as caught:
        read_value("{", "--set a={", "flag")
    assert (caught.value.code, caught.value.where) == ("bad-override", "--set a={")


PIECES = st.sampled_from(
    ["a", ": ", "\n", "- ", "? ", "{", "}", "[", "]", ", ", "&a ", "*a", "!!int ", "!<x>", "!", "|", ">", "'", '"']
    + ["\\x", "\\UFFFF", "%YAML 1.", "---\n", "...\n", "#", "\t", "<<", "9e999", "~", "\r", " "]
)


@given(st.binary(max_size=60) | st.lists(PIECES, max_size=25).map(lambda each: "".join(each).encode()))
@example(b'"\\U00110000"')
@example(b"\xff\xfe")
def test_bytes_of_any_kind_raise_nothing_but_a_spec_error(text: bytes) -> None:
    with contextlib.suppress(SpecError):
        read_document(text, "job.yaml")
