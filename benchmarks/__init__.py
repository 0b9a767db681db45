"""Benchmarks against other libraries: `python -m benchmarks.objectives --help`.

Programs, not part of the library: they set threads, precision and seeds of their own process.
"""
