"""What steps, processes and hardware took (`runs.measured`), and which version made which revision.

All of it is computed from records, and what an older version has read of them lacks it. So how far the files
are read is forgotten, and the next look at each run reads them from their start.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("measured", sa.Text(), nullable=False, server_default="{}"))
    op.create_table(
        "revisions",
        sa.Column("revision", sa.String(length=32), nullable=False),
        sa.Column("gscalar", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_revisions")),
    )
    read_anew()


def downgrade() -> None:
    read_anew()
    op.drop_table("revisions")
    with op.batch_alter_table("runs") as table:
        table.drop_column("measured")


def read_anew() -> None:
    op.execute("DELETE FROM record_files")
    op.execute("DELETE FROM metric_summaries")
    op.execute("UPDATE runs SET settled_mtime_ns = NULL")
