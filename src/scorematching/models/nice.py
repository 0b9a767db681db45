"""NICE: a flow of additive couplings with an exact density."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching._checks import check_choice, check_coordinates, check_count, check_shape
from scorematching._random import normal, uniform
from scorematching.distributions import standard_normal_log_density
from scorematching.models.networks import mlp, widths


class Prior(NamedTuple):
    """A distribution of independent coordinates.

    Attributes:
        log_density: ``(N, K) -> (N,)``, for any number K of coordinates.
        sample: coordinates, ``(shape, like, generator) -> (*shape)``, as those of `_random`.
    """

    log_density: Callable[[Tensor], Tensor]
    sample: Callable[[Sequence[int], Tensor, torch.Generator | None], Tensor]


PRIORS = {
    "normal": Prior(standard_normal_log_density, normal),
    "logistic": Prior(
        lambda z: (2 * F.logsigmoid(z) - z).sum(-1),
        # A uniform number may be 0, whose logit is infinite.
        lambda shape, x, g: torch.logit(uniform(shape, x, g), eps=torch.finfo(x.dtype).eps / 2),
    ),
}
"""Distributions of the latents; the logistic has density ``exp(-z) / (1 + exp(-z))^2``."""


class NICE(nn.Module):
    """A normalised density: additive couplings, a scale, and independent latents.

    The coordinates of x are split into two halves, a (0, 2, 4, ...) and b (1, 3, 5, ...). Couplings
    alternately add a network of one half to the other::

        b <- b + shift_0(a),    a <- a + shift_1(b),    b <- b + shift_2(a),    ...
        z = (a, b) * exp(log_scale)
        log p(x) = sum_i log prior(z_i) + sum_i log_scale_i

    Couplings preserve volume, so the log-determinant is that of the scale. Networks have softplus
    units and torch's default initial weights.

    Args:
        dim: D, number of coordinates, at least 2; may be odd.
        hidden: widths of the hidden layers of every coupling's network.
        num_couplings: number of couplings.
        prior: distribution of the latents, "normal" or "logistic".
        generator: source of the initial weights; None is torch's default generator.

    Reference: Dinh et al. (2014); Song et al. (2019), Section 6.1 and Appendix C.2, whose four
    couplings of five hidden layers with 1000 units are the defaults.

    Example:
        >>> flow = NICE(dim=3, hidden=(16,))
        >>> x = torch.randn(5, 3)
        >>> z, log_det = flow.transform(x)
        >>> torch.allclose(flow.inverse(z), x, atol=1e-5), log_det.shape
        (True, torch.Size([5]))
    """

    normalised = True

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (1000,) * 5,
        num_couplings: int = 4,
        prior: str = "normal",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_count(dim, "dim", "it is the number of coordinates")
        if dim < 2:
            raise ValueError(f"dim must be at least 2, got {dim}; a coupling needs two halves")
        check_count(num_couplings, "num_couplings", "the paper has 4")
        check_choice(prior, "prior", PRIORS, 'try "normal"')
        self.dim = dim
        self.prior = prior
        halves = (dim + 1) // 2, dim // 2
        self.shifts = nn.ModuleList(
            mlp(widths(halves[i % 2], hidden, halves[1 - i % 2]), nn.Softplus, generator)
            for i in range(num_couplings)
        )
        self.log_scale = nn.Parameter(torch.zeros(dim))

    @classmethod
    def as_released(cls, dim: int, generator: torch.Generator | None = None) -> NICE:
        """The network of the paper's released code: four hidden layers per coupling, not five."""
        return cls(dim, hidden=(1000,) * 4, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised log-density, ``(N, D) -> (N,)``; the same as `log_prob`."""
        return self.log_prob(x)

    def log_prob(self, x: Tensor) -> Tensor:
        """Normalised log-density, ``(N, D) -> (N,)``."""
        log_density = PRIORS[self.prior].log_density
        a, b = self._latents(x)
        return log_density(a) + log_density(b) + self.log_scale.sum()

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Latents ``(N, D)`` of points ``(N, D)``, and ``log |det dz/dx|``, ``(N,)``."""
        a, b = self._latents(x)
        return _interleave(a, b), self.log_scale.sum().expand(x.shape[0])

    def inverse(self, z: Tensor) -> Tensor:
        """Points of latents, the inverse of `transform`: ``(N, D) -> (N, D)``."""
        self._check_points(z, "z")
        x = z * torch.exp(-self.log_scale)
        a, b = x[:, 0::2], x[:, 1::2]
        for i, shift in reversed(list(enumerate(self.shifts))):
            a, b = (a, b - shift(a)) if i % 2 == 0 else (a - shift(b), b)
        return _interleave(a, b)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n independent points, ``(n, D)``, without gradients."""
        check_count(n, "n", "draw one point or more")
        return self.inverse(PRIORS[self.prior].sample((n, self.dim), self.log_scale, generator))

    def extra_repr(self) -> str:
        """Dimension and prior."""
        return f"dim={self.dim}, prior={self.prior!r}"

    def _latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves of z, ``(N, ceil(D / 2))`` and ``(N, floor(D / 2))``."""
        self._check_points(x, "x")
        a, b = x[:, 0::2], x[:, 1::2]
        for i, shift in enumerate(self.shifts):
            a, b = (a, b + shift(a)) if i % 2 == 0 else (a + shift(b), b)
        scale = torch.exp(self.log_scale)
        return a * scale[0::2], b * scale[1::2]

    def _check_points(self, x: Tensor, name: str) -> None:
        advice = f"one point needs a batch axis, {name}[None]; flatten images by {name}.flatten(1)"
        check_shape(x, (None, self.dim), f"{name} must have shape (N, {self.dim})", advice)
        check_coordinates(x, self.dim, self.log_scale)


def _interleave(a: Tensor, b: Tensor) -> Tensor:
    """Join two halves: a to columns 0, 2, 4, ..., b to columns 1, 3, 5, ...: ``(N, D)``."""
    half = a.shape[1]
    places = torch.arange(half + b.shape[1], device=a.device)
    return torch.cat([a, b], -1)[:, places // 2 + half * (places % 2)]
