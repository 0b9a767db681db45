"""Domains: where points live, when that is not all of R^D."""

from scorematching.domains.base import Domain, DomainField, restrict
from scorematching.domains.box import Box, PositiveOrthant
from scorematching.domains.sphere import Simplex, Sphere
from scorematching.domains.weights import weight_function

__all__ = [
    "Box",
    "Domain",
    "DomainField",
    "PositiveOrthant",
    "Simplex",
    "Sphere",
    "restrict",
    "weight_function",
]
