"""Cross-validated log-densities of candidates for the base."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching.distributions import Distribution
from scorematching.errors import DivergedError

Fit = Callable[[Tensor, Tensor, torch.Generator], Distribution]
"""Fits a distribution to training points; the second argument is points held out from them."""

_FEW, _MANY, _MOST = 1000, 3000, 10_000
_SINGLE_SPLIT, _MAX_HELD_OUT = 0.1, 5000

_FAR = 50.0
"""Nats below the median from which on a row is far outside a distribution."""


@dataclass(frozen=True)
class Candidate:
    """A distribution that may become part of the base.

    Attributes:
        name: for messages.
        fit: how it is fitted.
        averaged: whether the final estimate is the mean of those of all folds; otherwise it is
            fitted once more, to all points.
        prior: imagined points that it is likely for, which guarantees it some weight.
        required: whether a failure is an error, as for an object that the user gave.
    """

    name: str
    fit: Fit
    averaged: bool = False
    prior: float = 0.0
    required: bool = False


@dataclass(frozen=True)
class Trial:
    """A candidate, fitted without each fold.

    Attributes:
        candidate: the candidate.
        log_densities: of the points of every fold tried, by the fit without them, ``(N,)``.
        fits: one for each fold.
    """

    candidate: Candidate
    log_densities: Tensor
    fits: list[Distribution]

    @property
    def mean(self) -> float:
        """Mean held-out log-density."""
        return self.log_densities.mean().item()


@dataclass(frozen=True)
class Folds:
    """A partition of points for cross-validation; copies of a point are in the same fold.

    Attributes:
        x: points ``(N, D)``.
        held: which rows each fold holds out.
    """

    x: Tensor
    held: list[Tensor]

    def split(self, fold: int) -> tuple[Tensor, Tensor]:
        """Training and held-out points of a fold."""
        held = self.held[fold]
        kept = torch.ones(len(self.x), dtype=torch.bool, device=self.x.device)
        kept[held] = False
        return self.x[kept], self.x[held]

    def __len__(self) -> int:
        """Number of folds."""
        return len(self.held)

    def first(self, count: int) -> Folds:
        """The first folds only."""
        return Folds(self.x, self.held[:count])


def make_folds(
    x: Tensor,
    generator: torch.Generator,
    count: int | None = None,
    groups: Tensor | None = None,
) -> Folds:
    """Folds of equal size, at random.

    Args:
        x: points ``(N, D)``.
        generator: source of randomness.
        count: number of folds; None is 5, or 3 above 3,000 points, or a single split that holds
            out a tenth of them, at most 5,000, above 10,000.
        groups: numbers from zero of rows that stay together, ``(N,)``; None takes equal rows.

    Example:
        >>> folds = make_folds(torch.randn(20, 2), torch.Generator().manual_seed(0))
        >>> len(folds), [len(held) for held in folds.held]
        (5, [4, 4, 4, 4, 4])
    """
    which = x.unique(dim=0, return_inverse=True)[1] if groups is None else groups
    num = int(which.max()) + 1
    place = torch.randperm(num, generator=generator, device=x.device)[which]
    if count is None and num > _MOST:
        held_out = min(int(_SINGLE_SPLIT * num), _MAX_HELD_OUT)
        return Folds(x, [(place < held_out).nonzero().flatten()])
    count = min(count or (3 if num > _MANY else 5), num)
    return Folds(x, [(place % count == k).nonzero().flatten() for k in range(count)])


def attempt(candidate: Candidate, folds: Folds, generator: torch.Generator) -> Trial | None:
    """Fit a candidate without each fold; None if that fails or a log-density is not a number.

    Raises:
        ValueError: if a candidate that is required fails.
    """
    fits, values = [], []
    for fold in range(len(folds)):
        train, held = folds.split(fold)
        try:
            fit = candidate.fit(train, held, generator)
            with torch.no_grad():
                log_density = fit(held)
        except (ValueError, DivergedError, torch.linalg.LinAlgError) as error:
            return _failed(candidate, str(error))
        if bool((log_density.isnan() | (log_density == torch.inf)).any()):
            return _failed(candidate, "a log-density that is NaN or infinite")
        fits.append(fit)
        values.append(log_density)
    return Trial(candidate, torch.cat(values), fits)


def _failed(candidate: Candidate, reason: str) -> Trial | None:
    """No trial, or an error for a candidate that must not fail."""
    if candidate.required:
        raise ValueError(
            f"base must be a density of points (N, D) with D as in X, got {reason} "
            f'({candidate.name}); repair the object, or use base="auto"'
        )
    return None


def far_outside(log_densities: Tensor) -> Tensor:
    """Which rows lie far outside all of J distributions, ``(J, N) -> (N,)``.

    They must not choose between them: one wrong value, hundreds of standard deviations away, would
    decide alone, for the widest.
    """
    median = log_densities.median(1, keepdim=True).values
    return (log_densities < median - _FAR).all(0)


def walk(family: Sequence[Candidate], folds: Folds, generator: torch.Generator) -> Iterator[Trial]:
    """Trials of candidates in order of complexity, until the likelihood falls.

    With few held-out points, where a single fall may be noise, until it has fallen twice in a row.
    """
    few = sum(len(held) for held in folds.held) < _FEW
    best, worse, patience = -torch.inf, 0, 2 if few else 1
    for candidate in family:
        trial = attempt(candidate, folds, generator)
        if trial is None:
            return
        yield trial
        worse = 0 if trial.mean > best else worse + 1
        best = max(best, trial.mean)
        if worse == patience:
            return
