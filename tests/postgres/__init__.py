"""What only the PostgreSQL store does: its interleavings, plans, connections and wake-ups."""
