"""Unnormalised Gaussian log-densities, to which other models are added."""

import math

import torch
from torch import Tensor, nn

from scorematching._checks import check_coordinates, check_count, check_positive


class GaussianBase(nn.Module):
    """The normal log-density of mean zero, up to a constant: ``-|x|^2 / (2 scale^2)``.

    Args:
        scale: standard deviation.

    Example:
        >>> GaussianBase(scale=2.0)(torch.ones(1, 4)).item()
        -0.5
    """

    normalised = False

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        check_positive(scale, "scale", "2.0 suits whitened data")
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Log-density, ``(N, D) -> (N,)``."""
        return -0.5 / self.scale**2 * x.square().sum(-1)


class GeneralisedGaussian(nn.Module):
    """A product of one-dimensional densities with tails of any weight; all parameters are trained.

    ``log q0(x) = -sum_d |x_d - mu_d|^beta_d / (2 scale_d^2)`` with ``beta > 1``, and with
    ``|u|`` written ``sqrt(u^2 + 0.01)``, since powers below two have no second derivative at
    zero. It starts as a normal: beta = 2.

    Args:
        dim: D, number of coordinates.
        scale: initial scale of every coordinate.

    Reference: Wenliang et al. (2019), Section 3.2.

    Example:
        >>> q0 = GeneralisedGaussian(dim=4, scale=2.0)
        >>> x = torch.ones(1, 4)
        >>> torch.allclose(q0(x) - q0(0 * x), GaussianBase(scale=2.0)(x))
        True
    """

    normalised = False

    def __init__(self, dim: int, scale: float = 2.0) -> None:
        super().__init__()
        check_count(dim, "dim", "it is the number of coordinates")
        check_positive(scale, "scale", "2.0 suits whitened data")
        self.location = nn.Parameter(torch.zeros(dim))
        self.log_scale = nn.Parameter(torch.full((dim,), math.log(scale)))
        self.log_excess_power = nn.Parameter(torch.zeros(dim))

    @property
    def power(self) -> Tensor:
        """Beta, ``(D,)``, above one."""
        return 1 + self.log_excess_power.exp()

    def forward(self, x: Tensor) -> Tensor:
        """Log-density, ``(N, D) -> (N,)``."""
        check_coordinates(x, self.location.shape[0], self.location)
        magnitude = torch.pow((x - self.location).square() + 0.01, 0.5 * self.power)
        return -0.5 * (magnitude * torch.exp(-2 * self.log_scale)).sum(-1)
