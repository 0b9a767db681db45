"""The tolerances of the suite, relative to the scale of what is compared."""

IDENTITY = 1e-12
"""Two ways to write one formula, float64."""

ROUTES = 1e-9
"""Two different routes to one derivative or integral, float64."""

FLOAT32 = 1e-4
"""Float32 against float64."""

TOLERANCE = {"identity": IDENTITY, "routes": ROUTES, "float32": FLOAT32}
