"""Shared by all benchmarks and by the experiments: timing, provenance, commands, tables."""
