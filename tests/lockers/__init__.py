"""Lockers: the suite for each of them, and what only one of them can do."""
