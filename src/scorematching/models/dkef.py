"""Deep kernel exponential families."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from scorematching._checks import (
    can_read_values,
    check_choice,
    check_coordinates,
    check_count,
    check_flag,
    check_points,
    check_positive,
    check_type,
)
from scorematching.closed_form import QuadraticForm, SelectableFeatures, draw_form
from scorematching.distributions.bases import GaussianBase


class DKEF(nn.Module):
    """A kernel exponential family with a learned kernel.

    ``log p~(x) = log q0(x) + sum_l alpha_l k(x, z_l)`` with L inducing points z and the kernel
    ``k(x, z) = sum_r rho_r exp(-|phi_r(x) - phi_r(z)|^2 / (2 sigma_r^2))``. Each phi_r is a
    network of three layers with softplus between them and a linear path from input to output.

    The loss is quadratic in alpha, which is therefore solved for (`fit_alpha`). Everything else,
    the networks, inducing points, bandwidths sigma, mixture rho and ridge penalty lam, is trained
    through that solution (`two_stage_loss`). Cost: the networks are evaluated at N + L points, and
    the kernel takes N L R exponentials.

    Args:
        dim: D, number of coordinates.
        num_inducing: L.
        num_kernels: R.
        width: units of every layer of the networks.
        bandwidths: initial sigma, R numbers; None spreads them from 1 to 10 (1, 3.3 and 10 for
            R = 3).
        base: log q0, ``(N, D) -> (N,)``, trained with the rest if it has parameters; None is the
            normal of standard deviation 2, up to its constant. See `GeneralisedGaussian`.
        lam: initial ridge penalty of alpha.
        distances: how ``|phi(x) - phi(z)|^2`` is computed: "products" by a matrix product,
            "differences" by N L R width subtractions. The function is the same, but approximate
            backpropagation depends on how it is computed, and is usually stated for differences.
        as_released: divide by ``2 sigma_r`` in place of ``2 sigma_r^2``, as the authors' programs
            do.
        generator: source of the initial weights; None is torch's default generator.

    Reference: Wenliang et al. (2019), Learning deep kernels for exponential family densities;
    Song et al. (2019), Section 5.1 and Appendix C.1.

    Example:
        With alpha at zero the model is its base.

        >>> model = DKEF(dim=2, num_inducing=5)
        >>> x = torch.ones(3, 2)
        >>> model.initialise(torch.randn(20, 2))
        >>> model.features(x).shape, model(x).tolist()
        (torch.Size([3, 5]), [-0.25, -0.25, -0.25])
    """

    normalised = False

    def __init__(
        self,
        dim: int,
        num_inducing: int = 200,
        num_kernels: int = 3,
        width: int = 30,
        bandwidths: Sequence[float] | None = None,
        base: nn.Module | None = None,
        lam: float = 0.01,
        distances: str = "products",
        as_released: bool = False,
        generator: Generator | None = None,
    ) -> None:
        """Build the networks; `initialise` moves the inducing points to data."""
        super().__init__()
        check_count(dim, "dim", "it is the number of coordinates")
        check_count(num_inducing, "num_inducing", "200 is a good default")
        check_count(num_kernels, "num_kernels", "3 is a good default")
        check_count(width, "width", "30 is a good default")
        check_positive(lam, "lam", "0.01 is a good start; it is trained")
        check_flag(as_released, "as_released", "False is the formula of the paper")
        choices = ("products", "differences")
        check_choice(distances, "distances", choices, '"products" is the fast one')
        self.dim, self.num_inducing = dim, num_inducing
        self.distances, self.as_released = distances, as_released
        self.networks = FeatureNetworks(dim, num_kernels, width, generator)
        sigma = _initial_bandwidths(num_kernels, bandwidths)
        self.log10_bandwidth = nn.Parameter(torch.tensor([math.log10(s) for s in sigma]))
        self.mixture_logits = nn.Parameter(torch.zeros(num_kernels))
        self.inducing = nn.Parameter(torch.randn(num_inducing, dim, generator=generator))
        self.log10_lam = nn.Parameter(torch.tensor(math.log10(lam)))
        self.base = GaussianBase() if base is None else base
        self.alpha: Tensor
        self.register_buffer("alpha", torch.zeros(num_inducing))

    @property
    def lam(self) -> Tensor:
        """The ridge penalty of alpha, ``()``."""
        return 10**self.log10_lam

    @torch.no_grad()
    def initialise(self, x_train: Tensor, generator: Generator | None = None) -> None:
        """Set the inducing points to distinct random training points.

        Args:
            x_train: points ``(N, D)`` with ``N >= L``.
            generator: source of randomness; None is torch's default generator.
        """
        check_points(x_train, "x_train")
        num = self.num_inducing
        if x_train.shape[0] < num or x_train.shape[1:] != (self.dim,):
            raise ValueError(
                f"x_train must have at least num_inducing = {num} points of {self.dim} "
                f"coordinates, got shape {tuple(x_train.shape)}; give all training points, or "
                "lower num_inducing"
            )
        order = torch.randperm(x_train.shape[0], generator=generator, device=x_train.device)
        self.inducing.copy_(x_train[order[:num]])

    def features(self, x: Tensor) -> Tensor:
        """The kernel between points and inducing points, ``(N, D) -> (N, L)``."""
        return self._kernels(x).sum(0)

    def feature_at(self, x: Tensor, index: Tensor) -> Tensor:
        """The kernel between each point and one inducing point, ``(N, D), (N,) -> (N,)``."""
        b = self._scaled_features(self.inducing)[:, index]
        squares = (self._scaled_features(x) - b).square().sum(-1)
        return torch.exp(self._log_mixture[:, 0] - 0.5 * squares).sum(0)

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant at the stored alpha, ``(N, D) -> (N,)``."""
        return self.log_density_with(self.alpha)(x)

    def log_density_with(self, alpha: Tensor) -> Callable[[Tensor], Tensor]:
        """The log-density at given weights ``alpha: (L,)``, differentiable in them."""

        def log_density(x: Tensor) -> Tensor:
            return (self._kernels(x) @ alpha).sum(0) + self.base(x)

        return log_density

    def solve_alpha(self, x: Tensor, objective: Any, generator: Generator | None = None) -> Tensor:
        """The alpha of least loss at points ``x: (N, D)``, ``(L,)``, differentiable."""
        return self._batch_form(x, objective, generator).solve(self.lam)

    def fit_alpha(
        self, x: Tensor, objective: Any, generator: Generator | None = None, chunk_size: int = 100
    ) -> QuadraticForm:
        """Store the alpha of least loss at points; returns the mean loss as a function of alpha.

        Args:
            x: points ``(N, D)``.
            objective: any objective with `terms`.
            generator: source of randomness; None is torch's default generator.
            chunk_size: points evaluated at a time.
        """
        form = self.alpha_form(x, objective, generator, chunk_size)
        with torch.no_grad():
            self.alpha.copy_(form.solve(self.lam))
        return form

    @torch.no_grad()
    def alpha_form(
        self, x: Tensor, objective: Any, generator: Generator | None = None, chunk_size: int = 100
    ) -> QuadraticForm:
        """The mean loss of points as a function of alpha; arguments as `fit_alpha`."""
        check_points(x)
        check_count(chunk_size, "chunk_size", "100 points at a time suit most caches")
        forms = (self._batch_form(chunk, objective, generator) for chunk in x.split(chunk_size))
        return functools.reduce(QuadraticForm.merge, forms)

    def two_stage_loss(
        self, x_alpha: Tensor, x_loss: Tensor, objective: Any, generator: Generator | None = None
    ) -> Tensor:
        """The training loss: that of some points, with alpha solved on others, ``(N,)``.

        Its gradient goes through the solution, also to lam. The noise of the two halves is
        independent; the stored alpha does not change. Losses are NaN where the parameters have
        overflowed, so that a training loop can report the divergence.

        Args:
            x_alpha: points to solve alpha on, ``(N', D)``.
            x_loss: points to take the loss of, ``(N, D)``.
            objective: any objective with `terms`.
            generator: source of randomness; None is torch's default generator.

        Raises:
            ValueError: if alpha has no solution in the working precision.
        """
        form = self._batch_form(x_alpha, objective, generator)
        if self.overflows(form):
            return self.lam * x_loss.new_full((len(x_loss),), math.nan)
        return objective(self.log_density_with(form.solve(self.lam)), x_loss, generator)

    def overflows(self, form: QuadraticForm) -> bool:
        """Whether a form or lam is not finite; False where values cannot be read (CUDA graphs)."""
        values = torch.cat([form.G.flatten(), form.b, self.lam[None]]).detach()
        return can_read_values(values) and not bool(values.isfinite().all())

    def _batch_form(self, x: Tensor, objective: Any, generator: Generator | None) -> QuadraticForm:
        """The mean loss of points as a function of alpha, differentiable in all parameters."""
        features = SelectableFeatures(self.features, self.feature_at)
        return draw_form(features, self.base, x, objective, generator)

    @property
    def _log_mixture(self) -> Tensor:
        """``log rho``, ``(R, 1, 1)``."""
        return self.mixture_logits.log_softmax(0)[:, None, None]

    def _kernels(self, x: Tensor) -> Tensor:
        """``rho_r exp(-|phi_r(x) - phi_r(z_l)|^2 / (2 sigma_r^2))``, ``(R, N, L)``."""
        a, b = self._scaled_features(x), self._scaled_features(self.inducing)
        if self.distances == "differences":
            squares = (a[:, :, None] - b[:, None]).square().sum(-1)
            return torch.exp(self._log_mixture - 0.5 * squares)
        centre = b.mean(1, keepdim=True)  # products lose digits far from the origin
        a, b = a - centre, b - centre
        # a.b - |a|^2 / 2 by one matrix product; terms that depend on z alone are added.
        a = torch.cat([a, -0.5 * a.square().sum(-1, keepdim=True)], dim=-1)
        of_z = self._log_mixture - 0.5 * b.square().sum(-1)[:, None]
        b = torch.cat([b, torch.ones_like(b[..., :1])], dim=-1)
        return torch.exp(a @ b.mT + of_z)

    def _scaled_features(self, x: Tensor) -> Tensor:
        """``phi_r(x) / sigma_r``, ``(N, D) -> (R, N, width)``."""
        power = -0.5 if self.as_released else -1.0
        return self.networks(x) * (10 ** (power * self.log10_bandwidth))[:, None, None]


class FeatureNetworks(nn.Module):
    """R networks of one shape, ``(N, D) -> (R, N, width)``.

    ``W_3 softplus(W_2 softplus(W_1 x + c_1) + c_2) + c_3 + W_0 x``, all parameters drawn from
    ``N(0, 1 / width)``.

    Args:
        dim: D, number of coordinates.
        num: R, number of networks.
        width: units of every layer.
        generator: source of the initial weights; None is torch's default generator.

    Example:
        >>> FeatureNetworks(dim=2, num=3, width=4)(torch.zeros(5, 2)).shape
        torch.Size([3, 5, 4])
    """

    def __init__(self, dim: int, num: int, width: int, generator: Generator | None = None) -> None:
        super().__init__()

        def normal(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * width**-0.5)

        self.shape = (num, width)
        self.first, self.first_bias = normal(num * width, dim), normal(num * width)
        self.second, self.second_bias = normal(num, width, width), normal(num, 1, width)
        self.third, self.third_bias = normal(num, width, width), normal(num, 1, width)
        self.skip = normal(num * width, dim)

    def forward(self, x: Tensor) -> Tensor:
        """The features of every network, ``(N, D) -> (R, N, width)``."""
        check_coordinates(x, self.first.shape[1], self.first)
        h = F.softplus(self._by_network(F.linear(x, self.first, self.first_bias)))
        h = F.softplus(h @ self.second + self.second_bias)
        return h @ self.third + self.third_bias + self._by_network(F.linear(x, self.skip))

    def _by_network(self, h: Tensor) -> Tensor:
        return h.unflatten(-1, self.shape).movedim(-2, 0)


def _initial_bandwidths(num: int, given: Sequence[float] | None) -> list[float]:
    if given is None:
        return [1.0, 3.3, 10.0] if num == 3 else torch.logspace(0, 1, num).tolist()
    advice = "give one for each kernel, such as (1.0, 3.3, 10.0)"
    check_type(given, Iterable, "bandwidths must be a sequence", advice)
    if len(given) != num:
        raise ValueError(
            f"bandwidths must be num_kernels = {num} numbers, got {len(given)}; give one each"
        )
    for value in given:
        check_positive(value, "every bandwidth", "the scale of the features is a good start")
    return [float(value) for value in given]
