"""The public names are frozen: a new one is a promise, a lost one breaks users.

To change them on purpose, edit public_names.txt, run scripts/gen-docs and add a line to CHANGELOG.md.
"""

from __future__ import annotations

from pathlib import Path

import gscalar

ROOT = Path(__file__).resolve().parents[2]
FROZEN = Path(__file__).with_name("public_names.txt").read_text().split()


def test_the_public_names_are_the_frozen_ones() -> None:
    assert sorted(gscalar.__all__) == sorted(FROZEN)


def test_no_name_stands_twice() -> None:
    assert len(set(gscalar.__all__)) == len(gscalar.__all__)


def test_every_public_name_can_be_imported_and_is_listed_by_dir() -> None:
    missing = [name for name in gscalar.__all__ if not hasattr(gscalar, name)]
    assert not missing
    assert set(gscalar.__all__) <= set(dir(gscalar))


def test_every_public_name_has_a_docstring_unless_it_is_a_plain_value() -> None:
    bare = [
        name
        for name in gscalar.__all__
        if callable(getattr(gscalar, name)) and not (getattr(gscalar, name).__doc__ or "").strip()
    ]
    assert not bare


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs/reference.md").read_text()
    missing = [name for name in gscalar.__all__ if f"`gscalar.{name}`" not in page]
    assert not missing, f"not in docs/reference.md, run scripts/gen-docs: {missing}"
