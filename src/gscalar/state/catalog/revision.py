"""The revision of the catalog's tables that this version reads and writes. Apart from what SQLAlchemy is needed for."""

from __future__ import annotations

from typing import Final

# The newest file of migrations/versions; a test compares. It is here so that opening an up-to-date
# catalog needs no Alembic.
HEAD_REVISION: Final = "0002"
