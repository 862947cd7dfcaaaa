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
    """${message}. Names: `configured_tables(context.config)` knows the prefix and the schema."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Take it back."""
    ${downgrades if downgrades else "pass"}
