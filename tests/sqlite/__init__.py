"""What only SQLite has: its plans, locks, processes and modes."""
