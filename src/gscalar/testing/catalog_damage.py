"""Damages a catalog's file where only a later query meets it, as a bad disk does."""

from __future__ import annotations

import sqlite3
from pathlib import Path


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
