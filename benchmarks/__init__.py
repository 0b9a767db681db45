"""Benchmarks of the objectives against other libraries: `python -m benchmarks.objectives`."""
