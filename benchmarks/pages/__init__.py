"""Pages in docs/ that are written from the committed numbers of the benchmarks."""
