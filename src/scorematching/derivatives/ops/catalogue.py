"""Every rule of the package: importing this module fills the registry."""

from scorematching.derivatives.ops import (  # noqa: F401
    attention,
    compositions,
    elementwise,
    indexing,
    linalg,
    linear,
    norms,
    products,
    reductions,
    running,
)
