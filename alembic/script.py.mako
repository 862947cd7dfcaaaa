"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op
${imports if imports else ""}
from queue_lib.migrate import configured_tables

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """${message}."""
    tables = configured_tables(context.config)  # for their prefix and schema
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Take it back."""
    tables = configured_tables(context.config)
    ${downgrades if downgrades else "pass"}
