"""The multivariate Student-t distribution, for tables with heavy tails."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.distributions import Distribution
from scorematching.distributions.base import inverse, log_det, whitener
from scorematching.estimators.density.bases.gaussian import shrinkage, shrunk

_DEGREES = (40, 20, 10, 6, 4, 3, 2, 1)
_ITERATIONS, _TOLERANCE, _MAX_POINTS = 100, 1e-5, 20_000


class MultivariateT(Distribution):
    """A normal vector divided by an independent random length: elliptical, with heavy tails.

    With W the whitener of the scatter matrix and ``y = W (x - location)``::

        log p(x) = log Gamma((nu + D) / 2) - log Gamma(nu / 2) - D/2 log(nu pi) + log det W
                   - (nu + D) / 2 log(1 + |y|^2 / nu)

    Args:
        location: ``(D,)``.
        scatter: ``(D, D)``, symmetric and positive definite.
        df: nu, degrees of freedom, a whole number.

    Example:
        One degree of freedom in one dimension is the Cauchy distribution.

        >>> p = MultivariateT(torch.zeros(1), torch.eye(1), df=1)
        >>> torch.allclose(p(torch.zeros(1, 1)).exp(), torch.tensor(1 / math.pi))
        True
    """

    def __init__(self, location: Tensor, scatter: Tensor, df: int) -> None:
        super().__init__(len(location), like=location)
        self.location, self.df = location, df
        self.whitener = whitener(scatter, "scatter")

    def _log_density(self, x: Tensor) -> Tensor:
        y = (x - self.location) @ self.whitener.mT
        nu, d = self.df, self.dim
        constant = math.lgamma((nu + d) / 2) - math.lgamma(nu / 2) - d / 2 * math.log(nu * math.pi)
        tail = (nu + d) / 2 * torch.log1p(y.square().sum(-1) / nu)
        return constant + log_det(self.whitener) - tail

    def _score(self, x: Tensor) -> Tensor:
        y = (x - self.location) @ self.whitener.mT
        weight = (self.df + self.dim) / (self.df + y.square().sum(-1, keepdim=True))
        return -weight * (y @ self.whitener)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        eps = self._normal((n, self.dim), generator)
        chi_square = self._normal((n, self.df), generator).square().sum(-1, keepdim=True)
        return self.location + (eps / (chi_square / self.df).sqrt()) @ inverse(self.whitener).mT


def fit_student_t(x: Tensor) -> MultivariateT:
    """The Student-t of largest likelihood among several degrees of freedom.

    Location and scatter by the EM algorithm; the scatter is shrunk as the covariance of
    `fit_gaussian` is.

    Args:
        x: points ``(N, D)``; of more than 20,000 as many are taken.

    Example:
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).double()
        >>> fit_student_t(x / x[:, :1].abs()).df < 10
        True
    """
    x = some_rows(x, _MAX_POINTS)
    centre = x.median(0).values
    clipped = x.clamp(centre - 6, centre + 6)  # a single far point should not decide this
    share = shrinkage(clipped)
    location, scatter = centre, _scatter(x, centre, x.new_ones(len(x)), share)
    best, largest = None, -math.inf
    for df in _DEGREES:  # each starts where the one before ended, until the likelihood falls
        location, scatter = _em(x, df, share, location, scatter)
        fit = MultivariateT(location, scatter, df)
        likelihood = fit(x).mean().item()
        if best is not None and not likelihood > largest:
            break
        best, largest = fit, likelihood
    assert best is not None
    return best


def _em(
    x: Tensor, df: int, share: float, location: Tensor, scatter: Tensor
) -> tuple[Tensor, Tensor]:
    """Location and scatter at given degrees of freedom, by iterated weighting."""
    for _ in range(_ITERATIONS):
        y = torch.linalg.solve_triangular(
            torch.linalg.cholesky(scatter), (x - location).mT, upper=False
        )
        weights = (df + x.shape[1]) / (df + y.square().sum(0))
        location = weights @ x / weights.sum()
        previous, scatter = scatter, _scatter(x, location, weights, share)
        if (scatter - previous).abs().max() <= _TOLERANCE * previous.abs().max():
            break
    return location, scatter


def _scatter(x: Tensor, location: Tensor, weights: Tensor, share: float) -> Tensor:
    centred = (x - location) * weights.sqrt()[:, None]
    return shrunk(centred.mT @ centred / len(x), share)
