"""Experiments about the theorems of the paper, on a Gaussian model with known answers."""
