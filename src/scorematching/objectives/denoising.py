"""Denoising score matching, and a choice of its noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scorematching._checks import check_flag, check_points, check_positive, check_shape
from scorematching._shapes import dimension, event_axes, flatten_event, inner
from scorematching.fields import Field
from scorematching.objectives.base import Objective
from scorematching.types import Terms


@dataclass(frozen=True)
class NoiseLadder:
    """Levels of noise for networks that take the level, ``net(x, sigma)``.

    Every point has one of the levels, each with the same chance, and its loss is multiplied by the
    level's weight.

    Args:
        levels: standard deviations, such as those of `samplers.noise_levels`.
        weights: one for each level; by default ``sigma^2``, which gives all levels losses of the
            same size.

    Reference: Song and Ermon (2019), Generative modeling by estimating gradients, Eq. (6).

    Example:
        >>> NoiseLadder((2.0, 1.0)).weights
        (4.0, 1.0)
    """

    levels: tuple[float, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        advice = "take levels from samplers.noise_levels"
        levels = _positive_numbers(self.levels, "levels", advice)
        weights = [level**2 for level in levels] if self.weights is None else self.weights
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "weights", _positive_numbers(weights, "weights", advice))
        if len(self.weights or ()) != len(levels):
            raise ValueError(
                f"weights must hold one number per level, {len(levels)}, got {len(weights)}; leave "
                "them out for sigma^2"
            )


class LadderNoise(NamedTuple):
    """Noise at random levels.

    Attributes:
        eps: standard normal, ``(N, *event)``.
        level: which level each point has, ``(N,)``.
    """

    eps: Tensor
    level: Tensor


@dataclass(frozen=True)
class DenoisingScoreMatching(Objective):
    """Score matching to data with Gaussian noise added (DSM): no second derivative.

    ``J = 0.5 |s(y)|^2 + eps.s(y) / sigma`` at ``y = x + sigma eps``, which is the textbook
    ``0.5 |s(y) + eps / sigma|^2`` less a term free of parameters. It learns the score of the
    noisy data, not of the data. Cost: one score.

    The variance of ``eps.s(y) / sigma`` grows without bound as sigma shrinks. Since
    ``E[eps.s(x)] = 0``, ``control_variate=True`` subtracts it: the second term becomes
    ``eps.(s(y) - s(x)) / sigma``, which tends to ``eps' (grad s) eps``, for one more score.

    With a `NoiseLadder` the model is a network that takes the level, ``net(y, sigma)`` with sigma
    ``(N, 1, ...)``, and learns the scores of all levels: what `samplers.anneal` needs.

    Args:
        sigma: standard deviation of the noise, in the units of x; or one for each coordinate; or a
            `NoiseLadder`.
        control_variate: subtract the part of the second term whose mean is zero.

    Reference: Vincent (2011); Song et al. (2019), Section 5.1.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> dsm = DenoisingScoreMatching(sigma=0.01, control_variate=True)
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(4096, 3, generator=g, dtype=torch.float64)
        >>> bool((dsm(normal, x, generator=g).mean() + 1.5).abs() < 0.2)  # J = -D/2
        True
    """

    sigma: float | tuple[float, ...] | NoiseLadder
    control_variate: bool = False

    def __post_init__(self) -> None:
        advice = "for noise-free training use SlicedScoreMatching"
        sigma: Any = self.sigma
        if isinstance(sigma, (Tensor, np.ndarray)) and sigma.ndim == 0:
            sigma = sigma.item()  # a share of x.std(), for example
            object.__setattr__(self, "sigma", sigma)
        if isinstance(sigma, (list, tuple, Tensor, np.ndarray)):
            object.__setattr__(self, "sigma", _positive_numbers(sigma, "sigma", advice))
        elif not isinstance(sigma, NoiseLadder):
            check_positive(sigma, "sigma", advice)
        check_flag(self.control_variate, "control_variate", "it lowers the noise at small sigma")

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Any:
        """Standard normal noise of the shape of x, and for a ladder the levels of the points."""
        eps = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        if not isinstance(self.sigma, NoiseLadder):
            return eps
        count = len(self.sigma.levels)
        return LadderNoise(
            eps, torch.randint(count, x.shape[:1], generator=generator, device=x.device)
        )

    def terms(self, field: Field, x: Tensor, noise: Any) -> Terms:
        """First: the score of the noisy points ``(N, *F, D)``; second: its noise component."""
        if isinstance(self.sigma, NoiseLadder):
            return self._ladder_terms(self.sigma, field, x, noise)
        sigma: Any = self.sigma
        if isinstance(sigma, tuple):
            if len(sigma) != dimension(x):
                raise ValueError(
                    f"sigma must be one number or one for each of the {dimension(x)} coordinates "
                    f"of x, got {len(sigma)}; give as many as x has columns"
                )
            sigma = torch.tensor(sigma, dtype=x.dtype, device=x.device).reshape(x.shape[1:])
        return self._terms(field, x, noise, sigma)

    def _terms(self, field: Field, x: Tensor, noise: Tensor, sigma: float | Tensor) -> Terms:
        wanted = "noise must have the shape of x, {}"
        check_shape(noise, x.shape, wanted, "draw it with objective.draw(x)")
        axes = event_axes(x)
        noisy = x + sigma * noise
        score = field.score(noisy)
        field.check_support(noisy)
        field.check_steps(x, self._sizes, "sigma", most=1.0)  # rounding adds 8 % to its variance
        difference = score - field.score(x) if self.control_variate else score
        scaled = noise / sigma
        eps = scaled.reshape(noise.shape[0], *[1] * (score.ndim - noise.ndim), *noise.shape[1:])
        return Terms(flatten_event(score, axes), inner(eps, difference, axes))

    @property
    def _sizes(self) -> tuple[float, ...]:
        """The smallest deviation of noise, or that of each coordinate."""
        if isinstance(self.sigma, NoiseLadder):
            return (min(self.sigma.levels),)
        return self.sigma if isinstance(self.sigma, tuple) else (self.sigma,)

    def _ladder_terms(
        self, ladder: NoiseLadder, field: Field, x: Tensor, noise: LadderNoise
    ) -> Terms:
        """Terms at the level of each point, times its weight: sqrt(w) first, w second."""
        levels, weights = (
            torch.tensor(numbers, dtype=x.dtype, device=x.device)[noise.level]
            for numbers in (ladder.levels, ladder.weights)
        )
        sigma = levels.reshape(-1, *[1] * event_axes(x))
        first, second = self._terms(field.given(sigma), x, noise.eps, sigma)
        weights = weights.reshape(-1, *[1] * (second.ndim - 1))  # features have axes of their own
        return Terms(first * weights.sqrt()[..., None], second * weights)


def _positive_numbers(values: Any, name: str, advice: str) -> tuple[float, ...]:
    """Numbers of a sequence, all of them positive."""
    is_array = isinstance(values, (Tensor, np.ndarray))
    if values.ndim != 1 if is_array else not isinstance(values, Iterable):
        found = f"an array of shape {tuple(values.shape)}" if is_array else repr(values)
        raise TypeError(f"{name} must be numbers in one row, got {found}; flatten or list them")
    numbers = values.tolist() if is_array else [*values]
    if not numbers:
        raise ValueError(f"{name} must hold at least one number, got none; {advice}")
    for number in numbers:
        check_positive(number, f"every number in {name}", advice)
    return tuple(float(number) for number in numbers)


def parzen_sigma(x_train: Tensor, x_valid: Tensor, tolerance: float = 1e-6) -> float:
    """The noise of denoising score matching by a Parzen window on held-out points.

    The sigma at which a Gaussian window on every training point gives the held-out points the
    most likelihood: the maximum over log sigma of
    ``mean_y logsumexp_i(-|y - x_i|^2 / (2 sigma^2)) - D log sigma``, by golden section to
    convergence. Memory: one number per pair of points; a few thousand held-out points are enough.

    Args:
        x_train: centres of the windows ``(N, *event)``.
        x_valid: held-out points ``(N', *event)``.
        tolerance: width of the final bracket of log sigma.

    Returns:
        sigma, in the units of x.

    Raises:
        ValueError: if the events differ, or if held-out points repeat training points so that
            the likelihood grows without bound as sigma shrinks.

    Reference: Saremi et al. (2018); Song et al. (2019), Appendix C.2.

    Example:
        One training point: the maximum-likelihood scale of a Gaussian about it.

        >>> sigma = parzen_sigma(torch.zeros(1, 1), torch.tensor([[3.0], [4.0]]))
        >>> abs(sigma - 12.5**0.5) < 1e-4
        True
    """
    check_points(x_train, "x_train")
    check_points(x_valid, "x_valid")
    check_positive(tolerance, "tolerance", "1e-6 gives six digits of sigma")
    if x_train.shape[1:] != x_valid.shape[1:]:
        raise ValueError(
            f"x_valid must hold points of the shape of x_train's, {tuple(x_train.shape[1:])}, "
            f"got {tuple(x_valid.shape[1:])}; split one tensor in two"
        )
    train, valid = x_train.flatten(1).double(), x_valid.flatten(1).double()
    centre = train.mean(0)  # distances by matrix products lose digits far from the origin
    squared = torch.cdist(valid - centre, train - centre).square() / dimension(x_train)
    apart = squared.amin(1)
    apart = apart[apart > 1e-12 * squared.amax()]
    if apart.numel() == 0:
        raise ValueError(
            "x_valid must hold points that are not in x_train, got copies only, for which sigma "
            "shrinks to zero; split the data before you repeat any of it"
        )
    # The stationary sigma^2 is a weighted mean of these squares, hence within their range.
    low = float(apart.amin()) * apart.numel() / squared.shape[0]
    high = float(squared.amax())
    likelihood = partial(_parzen_likelihood, squared, dimension(x_train))
    return math.exp(_maximise(likelihood, 0.5 * math.log(low), 0.5 * math.log(high), tolerance))


def _parzen_likelihood(squared: Tensor, d: int, log_sigma: float) -> float:
    """Mean held-out log-likelihood up to a constant; ``squared`` is ``|y - x|^2 / D``."""
    window = torch.logsumexp(squared * (-0.5 * d * math.exp(-2 * log_sigma)), dim=1)
    return float(window.mean()) - d * log_sigma


def _maximise(f: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """The maximum of a function of one variable on an interval.

    A scan over the interval finds a bracket of the global maximum; golden section then shrinks it
    to the tolerance.
    """
    width = (high - low) / 32
    best = max((low + i * width for i in range(33)), key=f)
    low, high = best - width, best + width
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = f(a), f(b)
    while high - low > tolerance:
        if fa > fb:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = f(a)
        else:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = f(b)
    return (low + high) / 2
