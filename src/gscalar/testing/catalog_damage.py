"""Damages a catalog's file: where only a later query meets it, as a bad disk does, and so that it is valid SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

# Statements after which the file is a database without a fault, and no catalog. They happen by a copy that was cut
# short, a tool that writes elsewhere than it should, or a hand.
MISMATCHES: Final = {
    "no revision": "DELETE FROM alembic_version",
    "no table of the revision": "DROP TABLE alembic_version",
    "another table of the revision": "DROP TABLE alembic_version; CREATE TABLE alembic_version (other TEXT)",
    "no table of runs": "DROP TABLE runs",
    "no table of notes": "DROP TABLE notes",
    "no column of runs": "ALTER TABLE runs DROP COLUMN measured",
}
# As above; of these the file says that it is older, so that a migration is tried and fails.
OLDER: Final = {"an older revision than its tables": "UPDATE alembic_version SET version_num = '0001'"}


def mismatch(index: Path, statements: str) -> None:
    """Run one of the statements above."""
    with closing(sqlite3.connect(index)) as connection:
        connection.executescript(statements)


def damage_table(index: Path, table: str) -> None:
    """Overwrite the first page of a table. Opening the catalog does not read it; reading the table does."""
    connection = sqlite3.connect(index)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = connection.execute(query, (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    finally:
        connection.close()
    with index.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
