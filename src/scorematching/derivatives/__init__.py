"""The derivative engine: scores, curvatures and divergences of arbitrary modules."""
