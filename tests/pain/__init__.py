"""Faults that users of queues like this one have reported: each of them must be impossible here.

One module for each part of the table in `docs/reliability.md`, with the tests that no other suite
has; the number of the case stands at the beginning of each test's docstring.
"""
