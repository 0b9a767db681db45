"""Calibration of a fitted model by likelihood: 2 D + 1 numbers.

Score matching compares slopes. The share of mass in the centre and in the tails follows from slopes
integrated over long distances, with accumulated errors; likelihood measures it directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from scorematching.distributions import Distribution, Gaussian
from scorematching.evaluation import LogZEstimate
from scorematching.models import DKEF

BASE_SCALE, MAX_SCALE = 2.0, 3.0
_BATCH_SIZE, _MIN_EFFECTIVE = 4096, 100.0


class DiagonalBase(nn.Module):
    """An unnormalised normal distribution with a mean and a precision for every coordinate.

    ``log q0(x) = tilt . x - 0.5 precision . x^2``, at first the normal of standard deviation 2.

    Args:
        dim: D, number of coordinates.

    Example:
        >>> DiagonalBase(dim=4)(torch.ones(1, 4)).item()
        -0.5
    """

    def __init__(self, dim: int) -> None:
        """Set mean 0 and standard deviation 2."""
        super().__init__()
        self.tilt: Tensor
        self.precision: Tensor
        self.register_buffer("tilt", torch.zeros(dim))
        self.register_buffer("precision", torch.full((dim,), BASE_SCALE**-2))

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant, ``(N, D) -> (N,)``."""
        return (x * (self.tilt - 0.5 * self.precision * x)).sum(-1)


def widest_base(z: Tensor) -> Distribution:
    """The widest base that `calibrate` may choose, normalised."""
    d = z.shape[1]
    identity = torch.eye(d, dtype=z.dtype, device=z.device)
    return Gaussian(z.new_zeros(d), MAX_SCALE**2 * identity)


@torch.no_grad()
def calibrate(
    model: DKEF,
    z: Tensor,
    z_valid: Tensor,
    proposal: Distribution,
    generator: torch.Generator | None = None,
    num: int = 50_000,
) -> bool:
    """Fit the base and the scale of the weights by likelihood, in place.

    In ``log p = a alpha.k(z) + tilt.z - 0.5 precision.z^2 - log Z`` the 2 D + 1 numbers a, tilt and
    precision maximise the likelihood, with log Z by importance sampling. The model then has the
    mean and the variance of the points in every coordinate. The mean of ``alpha.k`` is taken over
    held-out points, since alpha was fitted to the others. Standard deviations of the base stay
    below 3, so that the density can be integrated.

    Args:
        model: with a `DiagonalBase`.
        z: all points ``(N, D)``.
        z_valid: points that alpha was not fitted to.
        proposal: for importance sampling.
        generator: source of randomness; None is torch's default generator.
        num: samples of the proposal.

    Returns:
        False if the effective sample size is below 100, too small for a likelihood; the model is
        then unchanged.
    """
    assert isinstance(model.base, DiagonalBase)
    x = proposal.sample(num, generator)
    kernel, log_q = _kernel_part(model, x), _in_batches(proposal, x)
    if LogZEstimate.of(kernel + model.base(x) - log_q).effective_sample_size < _MIN_EFFECTIVE:
        return False
    means = z.mean(0), z.square().mean(0), _kernel_part(model, z_valid).mean()
    log_a, tilt, precision = _maximise_likelihood(x, kernel, log_q, means)
    model.alpha.mul_(log_a.exp())
    model.base.tilt.copy_(tilt)
    model.base.precision.copy_(precision)
    return True


def _maximise_likelihood(
    x: Tensor, kernel: Tensor, log_q: Tensor, means: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Log a, tilt and precision by L-BFGS; means are those of x, of x^2 and of the kernel part."""
    first, second, mean_kernel = means
    least, squares = MAX_SCALE**-2, x.square()
    log_a, tilt = x.new_zeros(()).requires_grad_(), x.new_zeros(x.shape[1]).requires_grad_()
    excess = torch.full_like(tilt, math.log(BASE_SCALE**-2 - least)).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [log_a, tilt, excess], max_iter=100, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        with torch.enable_grad():
            a, precision = log_a.exp(), least + excess.exp()
            f = a * kernel + x @ tilt - 0.5 * squares @ precision
            mean_f = a * mean_kernel + tilt @ first - 0.5 * precision @ second
            likelihood = mean_f - (f - log_q).logsumexp(0)
            (-likelihood).backward()
        return -likelihood.detach()

    optimiser.step(loss)
    return log_a.detach(), tilt.detach(), least + excess.detach().exp()


def _kernel_part(model: DKEF, x: Tensor) -> Tensor:
    """``alpha . k(x)``, ``(N,)``."""
    return _in_batches(lambda x: model.features(x) @ model.alpha, x)


def _in_batches(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([f(batch) for batch in x.split(_BATCH_SIZE)])
