"""A proposal built from data, and samples of a log-density that is known up to a constant."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scorematching.distributions import Distribution
from scorematching.evaluation import LogZEstimate
from scorematching.samplers import hmc
from scorematching.types import LogDensity

_WIDE_SHARE = 0.2
_PILOT_CHAINS, _PILOT_STEPS, _MOVES, _LEAPFROG = 64, 25, 5, 8


class KernelProposal(Distribution):
    """A proposal for whitened data: narrow kernels on the points, mixed with a wide distribution.

    ``q(x) = (1 - w) mean_i N(x; a c_i, h^2 I) + w wide(x)`` with Silverman's bandwidth h and
    ``a = sqrt(1 - h^2)``, which gives the mixture of kernels the covariance of the points. The
    kernels are close to any good model of the data; the wide part bounds the weights if its tails
    are as heavy as the model's.

    Args:
        centres: c, points ``(N, D)`` of mean 0 and covariance I.
        wide: a normalised distribution.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> from scorematching.evaluation import importance_log_z
        >>> g = torch.Generator().manual_seed(0)
        >>> q = KernelProposal(torch.randn(50, 2, generator=g), Gaussian([0.0, 0.0], torch.eye(2)))
        >>> narrow = lambda x: -2 * x.square().sum(-1)  # Z = 2 pi / 4
        >>> estimate = importance_log_z(narrow, q, num=10000, generator=g)
        >>> abs(estimate.log_z - math.log(math.pi / 2)) < 5 * estimate.standard_error
        True
    """

    def __init__(self, centres: Tensor, wide: Distribution) -> None:
        """Choose the bandwidth."""
        n, d = centres.shape
        super().__init__(d, like=centres)
        self.bandwidth = min(0.9, (4 / ((d + 2) * n)) ** (1 / (d + 4)))
        self.centres = centres * (1 - self.bandwidth**2) ** 0.5
        self.wide = wide

    def _log_density(self, x: Tensor) -> Tensor:
        return torch.logaddexp(*self._parts(x, self._log_kernels(x)))

    def _score(self, x: Tensor) -> Tensor:
        log_kernels = self._log_kernels(x)
        share = torch.stack(self._parts(x, log_kernels), -1).softmax(-1)
        to_kernels = (log_kernels.softmax(-1) @ self.centres - x) / self.bandwidth**2
        return share[:, :1] * to_kernels + share[:, 1:] * self.wide.score(x)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        rows = torch.randint(len(self.centres), (n,), generator=generator, device=self.device)
        kernels = self.centres[rows] + self.bandwidth * self._normal((n, self.dim), generator)
        chosen = self._uniform((n, 1), generator) < _WIDE_SHARE
        return torch.where(chosen, self.wide.sample(n, generator), kernels)

    def _log_kernels(self, x: Tensor) -> Tensor:
        """Log of each kernel at points, without constants, ``(N, number of centres)``."""
        return -0.5 * torch.cdist(x, self.centres).square() / self.bandwidth**2

    def _parts(self, x: Tensor, log_kernels: Tensor) -> tuple[Tensor, Tensor]:
        """Log of weight times density of the kernels and of the wide part, ``(N,)`` each."""
        constant = self.dim * math.log((2 * math.pi) ** 0.5 * self.bandwidth)
        share = math.log((1 - _WIDE_SHARE) / len(self.centres))
        kernels = log_kernels.logsumexp(-1) + share - constant
        return kernels, self.wide(x) + math.log(_WIDE_SHARE)


@torch.no_grad()
def resample_and_move(
    log_density: LogDensity,
    proposal: Distribution,
    n: int,
    pool: int,
    generator: torch.Generator | None = None,
    batch_size: int = 4096,
) -> tuple[Tensor, LogZEstimate]:
    """Points approximately from a log-density: importance resampling, then Markov moves.

    A pool of points from the proposal q is weighted by ``exp(f) / q``, n of them are drawn with
    these probabilities, and each is moved by five steps of Hamiltonian Monte Carlo, which leave
    the target invariant. The error of the resampling is of the order of one over the effective
    sample size of the pool; the moves can only reduce it, and they separate points that were drawn
    twice. The pool covers all modes, so no move between modes is needed.

    Args:
        log_density: f, ``(N, D) -> (N,)``, differentiable.
        proposal: q.
        n: number of points.
        pool: number of points to draw from.
        generator: source of randomness; None is torch's default generator.
        batch_size: points weighted at a time, which limits memory.

    Returns:
        Points ``(n, D)``, and the estimate of log Z that the pool gives, with its effective
        sample size.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> g = torch.Generator().manual_seed(0)
        >>> q = KernelProposal(torch.randn(50, 2, generator=g), Gaussian([0.0, 0.0], torch.eye(2)))
        >>> narrow = lambda x: -2 * x.square().sum(-1)
        >>> x, _ = resample_and_move(narrow, q, n=1000, pool=2000, generator=g)
        >>> bool((x.var(0) - 0.25).abs().max() < 0.1)
        True
    """
    x = proposal.sample(pool, generator)
    batches = x.split(batch_size)
    log_weights = torch.cat([log_density(b) - proposal(b) for b in batches])
    rows = torch.multinomial(log_weights.softmax(0), n, replacement=True, generator=generator)
    return _moved(log_density, x[rows], generator), LogZEstimate.of(log_weights)


def _moved(log_density: LogDensity, x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Points after some steps, with a step size adapted on copies of a few of them."""
    target = hmc.target_of(log_density)
    state, size = hmc.start(target, x[:_PILOT_CHAINS]), x.shape[1] ** -0.25
    for _ in range(_PILOT_STEPS):
        state, info = hmc.step(state, target, size, _LEAPFROG, generator)
        size = float(hmc.adapt_step_size(size, info.acceptance))
    state = hmc.start(target, x)
    for _ in range(_MOVES):
        # Step sizes vary, because paths of a fixed length are periodic for a Gaussian target.
        u = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
        state, _ = hmc.step(state, target, size * (0.75 + 0.5 * u), _LEAPFROG, generator)
    return state.x
