"""Operations that are differentiated by nested forward mode through themselves.

Torch's second-order forward rules are missing or wrong for some operations, without an error, so
only those listed here are used: their second derivative, and its gradient, agree with finite
differences over torch's own sample inputs (``tests/opinfo``).
"""

from __future__ import annotations

from typing import Any

from scorematching.derivatives.ops.registry import spellings

TRUSTED = frozenset(
    function
    for name in (
        "i0 special_i0e special_i1 special_i1e polygamma special_polygamma mvlgamma "
        "special_multigammaln matrix_exp linalg_matrix_exp special_entr "
        "special_zeta grid_sampler_2d grid_sampler_3d kron renorm sinc special_sinc "
        "special_erfcx"
    ).split()
    for function in spellings(name)
)


def is_trusted(function: Any) -> bool:
    """Whether nested forward mode through a function has been compared with differences."""
    try:
        return function in TRUSTED
    except TypeError:
        return False
