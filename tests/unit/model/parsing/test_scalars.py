"""Plain words mean what YAML 1.2's core schema says."""

from __future__ import annotations

import math

import pytest

from gscalar.model.parsing.scalars import resolve_plain

WORDS = {
    "a number without a point may have an exponent": ("3e-4", 3e-4),
    "a sign before the exponent is optional": ("1E3", 1000.0),
    "a point may stand first": (".5", 0.5),
    "a point may stand last": ("5.", 5.0),
    "off is a word": ("off", "off"),
    "yes is a word": ("yes", "yes"),
    "no is a word": ("no", "no"),
    "on is a word": ("on", "on"),
    "y is a word": ("y", "y"),
    "true is a boolean": ("true", True),
    "FALSE is a boolean": ("FALSE", False),
    "tRuE is a word": ("tRuE", "tRuE"),
    "a leading zero is decimal": ("010", 10),
    "0o is octal": ("0o17", 15),
    "0x is hexadecimal": ("0xfF", 255),
    "a signed octal is a word": ("-0o17", "-0o17"),
    "a number in base 60 is a word": ("1:30", "1:30"),
    "an underscore makes a word": ("1_000", "1_000"),
    "a date is a word": ("2024-01-31", "2024-01-31"),
    "a plus sign is allowed": ("+12", 12),
    "tilde is null": ("~", None),
    "Null is null": ("Null", None),
    "nothing is null": ("", None),
    "nUll is a word": ("nUll", "nUll"),
    "infinity is a number": (".inf", math.inf),
    "minus infinity is a number": ("-.INF", -math.inf),
    "inf without a point is a word": ("inf", "inf"),
    "a version is a word": ("1.2.3", "1.2.3"),
    "digits of another script are a word": ("\u0663", "\u0663"),
    "a whole number of more than a thousand digits is a word": ("9" * 1001, "9" * 1001),
    "a number of more than a thousand digits is a word": ("9." + "9" * 999, "9." + "9" * 999),
    "a thousand digits are a number": ("9" * 1000, 10**1000 - 1),
}


@pytest.mark.parametrize("sentence", WORDS)
def test_resolve(sentence: str) -> None:
    text, want = WORDS[sentence]
    got = resolve_plain(text)
    assert got == want
    assert type(got) is type(want)


def test_nan_is_a_number() -> None:
    got = resolve_plain(".NaN")
    assert isinstance(got, float)
    assert math.isnan(got)
