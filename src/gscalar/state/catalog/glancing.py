"""A glance at the catalog with the plain driver: what `show`, `metrics` and `compare` ask of one that is up to date.

Loading SQLAlchemy takes more CPU time than all else that `gscalar show` does, so these few SELECTs are written out.
They give what `storing` and `resolving` give, or nothing: whatever is out of the ordinary (no file, another revision, a
database that is damaged or busy, a reference that is not found) is left to those, who explain it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

from gscalar.state.catalog.assembling import assemble_runs
from gscalar.state.catalog.revision import HEAD_REVISION
from gscalar.state.catalog.rows import RunState, RunSummary
from gscalar.state.home import Home

_BUSY_TIMEOUT_S: Final = 1.0
_JSON: Final = (
    "spec", "origins", "environment", "facts", "digests", "throughput", "measured", "nonfinite", "damage", "owner",
    "failure",
)  # fmt: skip
DECODED: Final[Mapping[str, Callable[[Any], Any]]] = {**dict.fromkeys(_JSON, json.loads), "secondary": bool}

_T = TypeVar("_T")


class Glance:
    """One state of the catalog. Every call may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def list_runs(self) -> dict[str, bool]:
        """Return whether it is deleted, for each run whose name is known for good."""
        # Until its job is written, a run that begins has its id for a name.
        query = (
            "SELECT id, deleted_ns IS NOT NULL FROM runs"
            " WHERE name != id OR ended_ns IS NOT NULL OR deleted_ns IS NOT NULL"
        )
        return {run_id: bool(deleted) for run_id, deleted in self._select(query)}

    def resolve(self, reference: str) -> str | None:
        """Return the id that `resolve_run` gives; None where it raises."""
        found = self._find("id = ?", reference)
        if not found:
            found = self._find("name = ? ORDER BY created_ns DESC, id LIMIT 1", reference)
        if not found and reference:
            start = re.sub("([%_/])", r"/\1", reference.lower())
            found = self._find("id LIKE ? ESCAPE '/' LIMIT 2", f"{start}%")
        return found[0] if len(found) == 1 else None

    def _find(self, condition: str, word: str) -> list[str]:
        query = f"SELECT id FROM runs WHERE deleted_ns IS NULL AND {condition}"
        return [str(run_id) for (run_id,) in self._select(query, (word,))]

    def load_state(self, run_id: str) -> RunState:
        """Return what `storing.load_state` does of a run that is there."""
        query = "SELECT status, owner, settled_mtime_ns FROM runs WHERE id = ?"
        ((status, owner, settled_mtime_ns),) = self._select(query, (run_id,))
        decoded = None if owner is None else json.loads(owner)
        return RunState(status=status, owner=decoded, deleted=False, settled_mtime_ns=settled_mtime_ns)

    def load_file_times(self, run_id: str) -> dict[str, tuple[int, int]]:
        """Return what `storing.load_file_times` does."""
        query = "SELECT file, size, mtime_ns FROM record_files WHERE run_id = ?"
        return {file: (size, mtime_ns) for file, size, mtime_ns in self._select(query, (run_id,))}

    def load_runs(self, run_ids: Sequence[str]) -> list[RunSummary]:
        """Return the runs of these ids, all of which are there, in this order."""

        def select(table: str, key: str, order: Sequence[str]) -> Iterator[dict[str, Any]]:
            ordered = f" ORDER BY {', '.join(order)}" if order else ""
            query = f"SELECT * FROM {table} WHERE {key} IN ({', '.join('?' * len(run_ids))}){ordered}"
            cursor = self._connection.execute(query, tuple(run_ids))
            names = [each[0] for each in cursor.description]
            for values in cursor:
                row = dict(zip(names, values, strict=True))
                yield {name: _decode(name, value) for name, value in row.items()}

        found = assemble_runs(select)
        return [found[each] for each in run_ids]

    def _select(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, values).fetchall()


def glance(home: Home, look: Callable[[Glance], _T | None]) -> _T | None:
    """Return what `look` makes of the catalog; None where it is not as a running gscalar leaves it."""
    try:
        with closing(_connect(home.index)) as connection:
            connection.execute("BEGIN")
            (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone() or (None,)
            return look(Glance(connection)) if revision == HEAD_REVISION else None
    except (sqlite3.Error, OSError, KeyError):  # the last one where a table lacks a column
        return None


def _connect(path: Path) -> sqlite3.Connection:
    # An ordinary connection would make the file.
    uri = f"{path.as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)


def _decode(name: str, value: Any) -> Any:
    decode = DECODED.get(name)
    return value if decode is None or value is None else decode(value)
