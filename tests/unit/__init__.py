"""Pure tests: no database, no waiting."""
