"""One SQLAlchemy store for SQLite and PostgreSQL."""
