"""The Student-t distribution."""

import math

import torch
from torch import Tensor

from scorematching.distributions.base import (
    Array,
    Distribution,
    check_all_positive,
    check_dim,
    check_shape,
    tensors,
)


class StudentT(Distribution):
    """Independent Student-t coordinates: heavy tails, bounded score.

    With ``t = (x - location) / scale`` and nu = df, coordinate by coordinate::

        log p(x) = log Gamma((nu + 1) / 2) - log Gamma(nu / 2) - log(nu pi) / 2 - log scale
                   - (nu + 1) / 2 log(1 + t^2 / nu)
        score(x) = -(nu + 1) t / (nu + t^2) / scale

    Args:
        dim: D.
        df: degrees of freedom, a number or ``(D,)``; moments below this order are finite.
        location: centre, a number or ``(D,)``.
        scale: a number or ``(D,)``.

    Reference:
        Samples by Bailey's (1994) polar method: with u, w uniform,
        ``sqrt(nu (u^(-2/nu) - 1)) cos(2 pi w)`` is Student-t.

    Example:
        One degree of freedom is the Cauchy distribution, with density 1 / pi at the centre.

        >>> torch.allclose(StudentT(1, df=1.0)(torch.zeros(1, 1)).exp(), torch.tensor(1 / math.pi))
        True
    """

    def __init__(self, dim: int, df: Array, location: Array = 0.0, scale: Array = 1.0) -> None:
        check_dim(dim, "StudentT", 1)
        df, location, scale = tensors({"df": df, "location": location, "scale": scale})
        for name, value in {"df": df, "location": location, "scale": scale}.items():
            if value.ndim:
                check_shape(value, name, (dim,))
        check_all_positive(df, "df", "for normal tails use Gaussian")
        check_all_positive(scale, "scale", "it multiplies a standard Student-t")
        super().__init__(dim, like=df)
        self.df = df.expand(dim)
        self.location = location.expand(dim)
        self.scale = scale.expand(dim)

    def _log_density(self, x: Tensor) -> Tensor:
        nu = self.df
        t = (x - self.location) / self.scale
        log_z = _log_normaliser(nu.double()).to(nu.dtype)
        return -((nu + 1) / 2 * (t.square() / nu).log1p() + log_z + self.scale.log()).sum(-1)

    def _score(self, x: Tensor) -> Tensor:
        t = (x - self.location) / self.scale
        return -(self.df + 1) * t / (self.df + t.square()) / self.scale

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        u = 1 - self._uniform((n, self.dim), generator)
        angle = 2 * math.pi * self._uniform((n, self.dim), generator)
        radius = (self.df * (-2 / self.df * u.log()).expm1()).sqrt()
        return self.location + self.scale * radius * angle.cos()


def _log_normaliser(nu: Tensor) -> Tensor:
    """``log Gamma(nu / 2) - log Gamma((nu + 1) / 2) + log(nu pi) / 2``, in double precision.

    From 1000 degrees of freedom on by its series in 1 / nu, since both log Gamma are large and
    nearly equal there.
    """
    few = nu.clamp(max=1e3)
    exact = (few / 2).lgamma() - ((few + 1) / 2).lgamma() + (few * math.pi).log() / 2
    series = 0.5 * math.log(2 * math.pi) + 1 / (4 * nu) - 1 / (24 * nu**3)
    return torch.where(nu < 1e3, exact, series)
