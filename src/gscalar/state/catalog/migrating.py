"""Runs Alembic's migrations, which are files of this package. Imported only when one is due."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from gscalar.base.version import __version__
from gscalar.state.catalog.schema import HEAD_REVISION, revisions
from gscalar.state.catalog.sqlite import WRITES

_FOLDER = Path(__file__).with_name("migrations")


def configuration(connection: sa.Connection | None = None) -> Config:
    """Return Alembic's configuration for the catalog; there is no alembic.ini."""
    config = Config()
    # The value passes through a ConfigParser, for which % is special.
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def is_known(revision: str) -> bool:
    """Tell whether this version of the package has the revision."""
    try:
        ScriptDirectory.from_config(configuration()).get_revision(revision)
    except CommandError:
        return False
    return True


def head() -> str | None:
    """Return the newest revision in the folder of migrations."""
    return ScriptDirectory.from_config(configuration()).get_current_head()


def migrate(engine: sa.Engine, target: str = "head") -> None:
    """Bring the catalog to a revision, in one transaction: it is migrated as a whole or not at all."""
    with engine.connect() as connection:
        connection.execution_options(**{WRITES: True})
        with connection.begin():
            command.upgrade(configuration(connection), target)
            if target == "head":
                connection.execute(revisions.delete().where(revisions.c.revision == HEAD_REVISION))
                connection.execute(revisions.insert(), {"revision": HEAD_REVISION, "gscalar": __version__})
