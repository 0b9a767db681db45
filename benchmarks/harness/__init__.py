"""What all benchmarks share: timing, and where a number comes from."""
