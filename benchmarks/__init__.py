"""Benchmarks: ratios to the raw statements, measured in the same run."""
