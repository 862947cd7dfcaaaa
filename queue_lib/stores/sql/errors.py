"""What our errors say about a database's."""

from __future__ import annotations

from queue_lib.errors import SchemaError, StoreError

__all__ = ["translate"]


def translate(error: BaseException, meaning: type[Exception]) -> StoreError:
    """Return our error for one of a driver's or SQLAlchemy's, which has this meaning."""
    # The driver's own text: SQLAlchemy's adds the statement and its parameters.
    text = str(getattr(error, "orig", None) or error).strip()
    if meaning is SchemaError:
        line = text.partition("\n")[0]  # what is missing; the others quote the statement
        text = (
            "the queue's tables are missing or of another release: "
            f"run `alembic upgrade head` or `python -m queue_lib migrate URL` ({line})"
        )
    return (meaning if issubclass(meaning, StoreError) else StoreError)(text)
