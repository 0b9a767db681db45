"""Density estimation for tables: `DensityEstimator` and its parts."""

from scorematching.estimators.density.estimator import DensityEstimator

__all__ = ["DensityEstimator"]
