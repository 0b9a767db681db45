"""The space in which models of one table are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorematching.datasets import Compose, Standardise, Transform, Whiten
from scorematching.distributions import Distribution, Gaussian
from scorematching.estimators.density.bases.transformed import Transformed
from scorematching.estimators.density.scaling import Inverse
from scorematching.fields import Field, VectorField


@dataclass(frozen=True, eq=False)
class Space:
    """Maps of modelled columns x to standardised ones s, and to z, where a Gaussian is standard.

    Log-densities are those of x. Score-matching losses depend on units; they are those of z, in
    which the Gaussian baseline is the standard normal distribution.

    Attributes:
        columns: names of the modelled columns.
        scaling: ``x -> s``.
        whiten: ``s -> z``.
    """

    columns: tuple[str, ...]
    scaling: Standardise
    whiten: Transform

    @classmethod
    def of(cls, columns: Any, gaussian: Transformed) -> Space:
        """The space in which a Gaussian of x, seen through a scaling, is standard normal."""
        inner, scaling = gaussian.inner, gaussian.transform
        assert isinstance(inner, Gaussian) and isinstance(scaling, Standardise)
        values, vectors = torch.linalg.eigh(inner.precision)
        whiten = Whiten(inner.mean, vectors, values.rsqrt(), symmetric=True)
        return cls(tuple(columns), scaling, whiten)

    def like(self, other: Space) -> Space:
        """This whitened space, reached from s of another space by way of x."""
        back = Inverse(other.scaling)
        return Space(self.columns, other.scaling, Compose(back, self.scaling, self.whiten))

    def rows(self, frame: Any) -> Tensor:
        """The modelled columns of a data frame, ``(N, K)``."""
        return torch.tensor(frame[list(self.columns)].to_numpy(np.float64))

    def z(self, x: Tensor) -> Tensor:
        """Whitened points, ``(N, K)``."""
        return self.whiten(self.scaling(x))

    def x(self, z: Tensor) -> Tensor:
        """Points from whitened ones."""
        return self.scaling.inverse(self.whiten.inverse(z))

    def density(self, of_s: Distribution) -> Distribution:
        """The distribution of z where s has a given one."""
        return Transformed(of_s, Inverse(self.whiten))

    @property
    def _jacobian(self) -> Tensor:
        """``ds / dz_j`` in row j, which is the same everywhere."""
        eye = torch.eye(len(self.columns), dtype=torch.float64)
        return self.whiten.inverse(eye) - self.whiten.inverse(torch.zeros_like(eye))

    @property
    def least_scale(self) -> float:
        """The least size in z, one at most, of rows of size one in s, whose scale is robust."""
        return 1 / max(1.0, self._jacobian.norm(dim=1).max().item())

    def field(self, score_of_s: Any) -> Field:
        """The score in z of a score in s."""
        jacobian = self._jacobian

        def score(z: Tensor) -> Tensor:
            return score_of_s(self.whiten.inverse(z)) @ jacobian.mT

        return VectorField(score)
