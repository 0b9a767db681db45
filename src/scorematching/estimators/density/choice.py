"""The choice of the base: candidates are tried by cross-validation and stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.candidates import Family
from scorematching.estimators.density.selection import Candidate, Folds, Trial, attempt, walk
from scorematching.estimators.density.stacking import Stack, stacking_weights
from scorematching.estimators.time_limit import Clock

_MIN_WEIGHT, _MIN_GAIN = 0.01, 0.1
_MAX_ENTRIES = 11_000
"""Entries of a table above which three folds are tried only."""
_FEW_ENTRIES, _SCREEN_WEIGHT = 10_000, 5e-3
"""Entries up to which cheap candidates see all folds; weight on the first fold to see others."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class Base:
    """The chosen base.

    Attributes:
        distribution: q0, fitted to all points.
        held_out: the same mixture without the points of the first fold, for what is learned on
            top of it.
        folds: of the points.
        weights: of its parts, by name.
        log_densities: cross-validated, of every point held out, ``(N,)``.
    """

    distribution: Distribution
    held_out: Distribution
    folds: Folds
    weights: dict[str, float]
    log_densities: Tensor


def choose_base(
    families: Sequence[Family],
    folds: Folds,
    generator: torch.Generator,
    report: Report,
    clock: Clock | None = None,
) -> Base:
    """Try candidates and stack them.

    All candidates are tried on one fold, and those with a weight in the stack there on the others.
    In small tables, where one fold says little, cheap candidates are tried on all folds. Once the
    clock is over, candidates that were not tried yet are left out, and the others are stacked by
    the folds that they were tried on. ``report`` receives a line about each candidate.

    Raises:
        ValueError: if every candidate fails.
    """
    entries = folds.x.numel()
    folds = folds.first(3) if entries > _MAX_ENTRIES else folds
    trials: list[Trial] = []
    clock = clock or Clock()
    for family in families:
        if trials and clock.is_over:
            report("time is over: the other candidates were left out")
            break
        if family.slow:
            trials += _race(family.candidates, trials, folds.first(1), generator, report)
            continue
        tried = folds.first(1) if entries > _FEW_ENTRIES else folds
        for trial in walk(family.candidates, tried, generator):
            report(f"{trial.candidate.name}: held-out log-likelihood {trial.mean:.3f}")
            trials.append(trial)
            if clock.is_over:
                break
    if not clock.cuts("the search for a base ended early"):
        completed = [_complete(trial, folds, generator) for trial in _promising(trials)]
        trials = [trial for trial in completed if trial is not None]
    if not trials:
        raise ValueError(
            'base must have a candidate that can be fitted to X, got none; try base="gaussian"'
        )
    return _stacked(trials, folds, generator)


def _race(
    candidates: Sequence[Candidate],
    trials: list[Trial],
    first: Folds,
    generator: torch.Generator,
    report: Report,
) -> list[Trial]:
    """Trials of the slow candidates that improve the stack on the first fold."""
    rows, kept = len(first.held[0]), []
    known = [Trial(t.candidate, t.log_densities[:rows], t.fits[:1]) for t in trials]
    for candidate in candidates:
        trial = attempt(candidate, first, generator)
        if trial is None:
            continue
        gain = _likelihood([*known, trial]) - _likelihood(known) if known else torch.inf
        report(f"{candidate.name}: gain of the first fold {gain:.3f}")
        if gain >= _MIN_GAIN:
            known.append(trial)
            kept.append(trial)
    return kept


def _promising(trials: list[Trial]) -> list[Trial]:
    """Trials on several folds, and those with a weight in the stack of the first."""
    if not trials:
        return []
    weights = _weights(trials)[1].tolist()
    return [t for t, weight in zip(trials, weights) if len(t.fits) > 1 or weight > _SCREEN_WEIGHT]


def _complete(trial: Trial, folds: Folds, generator: torch.Generator) -> Trial | None:
    """A trial on all folds, from one on the first ones; None if a fit fails."""
    rest = Folds(folds.x, folds.held[len(trial.fits) :])
    more = attempt(trial.candidate, rest, generator) if len(rest) else None
    if more is None:
        return trial if not len(rest) else None
    log_densities = torch.cat([trial.log_densities, more.log_densities])
    return Trial(trial.candidate, log_densities, trial.fits + more.fits)


def _likelihood(trials: list[Trial]) -> float:
    log_densities, weights = _weights(trials)
    return (log_densities + weights.log()).logsumexp(1).mean().item()


def _weights(trials: list[Trial]) -> tuple[Tensor, Tensor]:
    """Log-densities of points that all trials have held out, ``(N, J)``, and weights ``(J,)``."""
    shared = min(len(trial.log_densities) for trial in trials)
    log_densities = torch.stack([trial.log_densities[:shared] for trial in trials], 1)
    prior = torch.tensor([trial.candidate.prior for trial in trials])
    return log_densities, stacking_weights(log_densities, prior)


def _stacked(trials: list[Trial], folds: Folds, generator: torch.Generator) -> Base:
    """The stack of all trials, without those of little weight."""
    log_densities, weights = _weights(trials)
    kept = weights > min(_MIN_WEIGHT, weights.max().item() / 2)
    weights = weights[kept] / weights[kept].sum()
    chosen = [trial for trial, keep in zip(trials, kept.tolist()) if keep]
    parts = [_final(trial, folds.x, generator) for trial in chosen]
    return Base(
        distribution=Stack(parts, weights),
        held_out=Stack([trial.fits[0] for trial in chosen], weights),
        folds=folds,
        weights={t.candidate.name: w for t, w in zip(chosen, weights.tolist())},
        log_densities=(log_densities[:, kept] + weights.log()).logsumexp(1),
    )


def _final(trial: Trial, x: Tensor, generator: torch.Generator) -> Distribution:
    """The estimate from all points: the mean over the folds, or one more fit."""
    if trial.candidate.averaged:
        count = len(trial.fits)
        return Stack(trial.fits, torch.full((count,), 1 / count)) if count > 1 else trial.fits[0]
    return trial.candidate.fit(x, x[:1], generator)
