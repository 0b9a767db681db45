"""DensityEstimator against kernel, mixture and flow estimates, on held-out rows of tables."""
