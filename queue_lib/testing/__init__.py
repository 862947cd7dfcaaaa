"""Tools for testing stores, and code that uses a queue. Needs the extra `test`."""
