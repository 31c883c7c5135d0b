"""From what a person types to a run's id."""

from __future__ import annotations

import difflib
from typing import Final

import sqlalchemy as sa

from gscalar.base.errors import UserError
from gscalar.state.catalog import schema
from gscalar.state.catalog.catalog import Catalog

_MAX_OFFERED: Final = 5
# Names beyond these are too old to be what was meant.
_MAX_COMPARED: Final = 2000


def resolve_run(catalog: Catalog, reference: str) -> str:
    """Return the id of the run that an id, a name (the newest run of it) or a unique prefix of an id means.

    A whole name wins over a prefix: with many runs, short names are prefixes of some id by chance.

    Raises:
        UserError: `run-not-found`, with what is nearest; `ambiguous-run`, with the runs that fit.
    """
    runs = schema.runs.c
    present = sa.select(runs.id).where(runs.deleted_ns.is_(None))
    with catalog.read() as connection:
        found = connection.scalar(present.where(runs.id == reference))
        if found is None:
            named = present.where(runs.name == reference).order_by(runs.created_ns.desc(), runs.id)
            found = connection.scalar(named.limit(1))
        if found is not None:
            return str(found)
        prefixed = present.where(runs.id.startswith(reference.lower(), autoescape=True)).order_by(
            runs.created_ns.desc()
        )
        ids = [str(run_id) for run_id in connection.scalars(prefixed)] if reference else []
        if len(ids) == 1:
            return ids[0]
        if ids:
            raise _ambiguous(reference, ids)
        raise _not_found(connection, reference)


def _ambiguous(reference: str, ids: list[str]) -> UserError:
    more = f" and {len(ids) - _MAX_OFFERED} more" if len(ids) > _MAX_OFFERED else ""
    return UserError(
        code="ambiguous-run",
        what="More than one run has this prefix.",
        value=reference,
        next_step=f"Write more of the id: {', '.join(ids[:_MAX_OFFERED])}{more}.",
    )


def _not_found(connection: sa.Connection, reference: str) -> UserError:
    runs = schema.runs.c
    deleted_ns = connection.scalar(sa.select(runs.deleted_ns).where(runs.id == reference))
    if deleted_ns is not None:
        return UserError(
            code="run-not-found",
            what="The run was deleted.",
            value=reference,
            next_step="`gscalar runs` lists those that are there.",
        )
    newest = sa.select(runs.id, runs.name).where(runs.deleted_ns.is_(None)).order_by(runs.created_ns.desc())
    rows = connection.execute(newest.limit(_MAX_COMPARED)).all()
    words = {word: None for row in rows for word in (row.name, row.id)}
    near = difflib.get_close_matches(reference, words, n=3, cutoff=0.5)
    return UserError(
        code="run-not-found",
        what="No run has this id, prefix or name.",
        value=reference,
        next_step=f"Did you mean {' or '.join(near)}?" if near else "`gscalar runs` lists those that are there.",
    )
