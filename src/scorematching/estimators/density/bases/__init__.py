"""Bases of `DensityEstimator`: one way to fit a normalised density to a table in each file."""
