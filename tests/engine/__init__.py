"""The engine suite: what a queue promises, on every store."""
