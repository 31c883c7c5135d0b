"""Exceptions as Python, torch and exception groups print them."""

from __future__ import annotations

import pytest

from gscalar.control.tracebacks import find_error, last_lines

PLAIN = """\
Traceback (most recent call last):
  File "t.py", line 3, in <module>
    f()
    ~^^
ValueError: bad value
"""
CHAIN = """\
Traceback (most recent call last):
  File "t.py", line 1, in <module>
    {}["x"]
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "t.py", line 3, in <module>
    raise ValueError("late") from None
my.module.LateError: late
"""
SYNTAX = """\
  File "/tmp/t.py", line 1
    def (
        ^
SyntaxError: invalid syntax
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "t.py", line 1, in <module>
  |     raise ExceptionGroup("both", errors)
  | ExceptionGroup: both (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: one
"""
LOADER = """\
Traceback (most recent call last):
  File "t.py", line 3, in <module>
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "worker.py", line 1, in loop
ValueError: bad sample
"""

ERRORS = {
    "a plain exception": (PLAIN, "ValueError", "bad value"),
    "output before and after it": (f"step 1\n{PLAIN}[W] destroyed\n", "ValueError", "bad value"),
    "an exception without a message": (PLAIN.replace(": bad value", ""), "ValueError", ""),
    "the last of a chain, without its module": (CHAIN, "LateError", "late"),
    "a syntax error, which has no header": (SYNTAX, "SyntaxError", "invalid syntax"),
    "an exception group": (GROUP, "ExceptionGroup", "both (2 sub-exceptions)"),
    "an exception of a data worker": (
        LOADER,
        "ValueError",
        "Caught ValueError in DataLoader worker process 0.",
    ),
    "torch's rank prefix is taken off": (
        "".join(f"[rank3]: {line}\n" for line in PLAIN.splitlines()),
        "ValueError",
        "bad value",
    ),
    "of two logged exceptions the last": (CHAIN + "going on\n" + PLAIN, "ValueError", "bad value"),
}


@pytest.mark.parametrize("sentence", ERRORS)
def test_the_last_exception_is_found(sentence: str) -> None:
    text, kind, message = ERRORS[sentence]
    got = find_error(text)
    assert got is not None
    assert (got.kind, got.message) == (kind, message)


@pytest.mark.parametrize(
    "text", ["", "all is well\n", "Traceback (most recent call last):\n", "Traceback (most recent call last):\n  Fi"]
)
def test_no_exception_is_found_where_none_is_whole(text: str) -> None:
    assert find_error(text) is None


def test_the_traceback_is_kept_whole_and_without_what_came_before() -> None:
    got = find_error(f"step 1\n{PLAIN}")
    assert got is not None
    assert got.traceback == PLAIN


def test_the_traceback_holds_the_whole_chain_and_the_original_of_a_data_worker() -> None:
    chain, loader = find_error(f"step 1\n{CHAIN}"), find_error(LOADER)
    assert chain is not None
    assert loader is not None
    assert chain.traceback == CHAIN
    assert "bad sample" in loader.traceback


def test_an_older_exception_is_not_part_of_the_chain() -> None:
    got = find_error(CHAIN + "going on\n" + PLAIN)
    assert got is not None
    assert got.traceback == PLAIN


def test_the_last_lines_are_those_with_something_on_them() -> None:
    assert last_lines("a\n\nb\n   \nc\n", count=2) == "b\nc"
