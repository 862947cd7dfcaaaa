"""The benchmarks still run, and what they count does not depend on the machine."""
