"""Migrations: the tables they make, concurrent runs, host applications, the wheel."""
