from __future__ import annotations

from collections.abc import Iterator

import pytest

from gscalar.base.errors import UserError
from gscalar.state.catalog import Catalog, open_catalog, resolve_run, storing
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home

RUNS = (
    ("7k2m9qx4tz0a", "base", 1),
    ("7kzzzzzzzzzz", "base", 2),
    ("9a00000000000"[:12], "large", 3),
    ("b20000000000", "9a", 4),
    ("gone00000000", "gone", 5),
)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with open_catalog(Home(tmp_path_factory.mktemp("home"))) as opened:
        with opened.write() as connection:
            for run_id, name, created_ns in RUNS:
                storing.replace_run(
                    connection,
                    RunSummary(id=run_id, project="p", name=name, status="completed", created_ns=created_ns),
                )
            storing.mark_deleted(connection, "gone00000000", 9)
        yield opened


FOUND = {
    "a whole id": ("7k2m9qx4tz0a", "7k2m9qx4tz0a"),
    "a unique prefix": ("7k2", "7k2m9qx4tz0a"),
    "a prefix in capitals": ("7K2", "7k2m9qx4tz0a"),
    "a name means the newest run of it": ("base", "7kzzzzzzzzzz"),
    "a name wins over a prefix": ("9a", "b20000000000"),
}


@pytest.mark.parametrize("sentence", FOUND)
def test_found(sentence: str, catalog: Catalog) -> None:
    reference, want = FOUND[sentence]
    assert resolve_run(catalog, reference) == want


REFUSED = {
    "a prefix of two": ("7k", "ambiguous-run", "7kzzzzzzzzzz, 7k2m9qx4tz0a"),
    "a slip in a name offers the name": ("lagre", "run-not-found", "large"),
    "a slip in an id offers the id": ("7k2m9qx4tz0b", "run-not-found", "7k2m9qx4tz0a"),
    "nothing near": ("something else", "run-not-found", "gscalar runs"),
    "a deleted run": ("gone00000000", "run-not-found", "gscalar runs"),
    "the name of a deleted run": ("gone", "run-not-found", "gscalar runs"),
    "an empty word": ("", "run-not-found", "gscalar runs"),
    "a wildcard": ("7%", "run-not-found", "gscalar runs"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_refused(sentence: str, catalog: Catalog) -> None:
    reference, code, hint = REFUSED[sentence]
    with pytest.raises(UserError) as caught:
        resolve_run(catalog, reference)
    assert caught.value.code == code
    assert hint in caught.value.next_step
