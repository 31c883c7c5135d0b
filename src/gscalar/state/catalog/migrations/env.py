"""Alembic runs this around the migrations; the connection comes from `gscalar.state.catalog.migrating`."""

from __future__ import annotations

from alembic import context

from gscalar.state.catalog.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite's DDL is transactional too, once the driver does not begin and commit by itself.
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
