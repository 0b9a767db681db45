"""The choice of the base: candidates are tried by cross-validation and stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.candidates import Family
from scorematching.estimators.density.selection import (
    Candidate,
    Folds,
    Trial,
    attempt,
    walk,
)
from scorematching.estimators.density.stacking import Stack, stacking_weights
from scorematching.estimators.time_limit import Clock

_MIN_WEIGHT, _MIN_GAIN = 0.01, 0.1
_MAX_ENTRIES = 11_000
"""Entries of a table above which slow candidates see three folds only."""

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

    Cheap candidates are tried on all folds. A slow one, a flow, is tried on one fold, and on the
    others only if the stack with it is better there.

    Args:
        families: lists of candidates, each in order of complexity.
        folds: of standardised points.
        generator: source of randomness.
        report: receives a line about each candidate.
        clock: once it is over, the candidates that were not tried yet are left out.

    Returns:
        The base.

    Raises:
        ValueError: if every candidate fails.
    """
    trials: list[Trial] = []
    clock = clock or Clock()
    for family in families:
        if trials and clock.is_over:
            report("time is over: the other candidates were left out")
            break
        if family.slow:
            trials += _race(family.candidates, trials, folds, generator, report)
            continue
        for trial in walk(family.candidates, folds, generator):
            report(f"{trial.candidate.name}: held-out log-likelihood {trial.mean:.3f}")
            trials.append(trial)
            if clock.is_over:
                break
    if not trials:
        raise ValueError(
            'base must have a candidate that can be fitted to X, got none; try base="gaussian"'
        )
    return _stacked(trials, folds, generator)


def _race(
    candidates: Sequence[Candidate],
    trials: list[Trial],
    folds: Folds,
    generator: torch.Generator,
    report: Report,
) -> list[Trial]:
    """Trials of the slow candidates that improve the stack on the first fold."""
    folds = folds.first(3) if folds.x.numel() > _MAX_ENTRIES else folds
    first = folds.first(1)
    known, kept = [_on_first(trial, first) for trial in trials], []
    for candidate in candidates:
        trial = attempt(candidate, first, generator)
        if trial is None:
            continue
        gain = _likelihood([*known, trial]) - _likelihood(known) if known else torch.inf
        report(f"{candidate.name}: gain of the first fold {gain:.3f}")
        if gain < _MIN_GAIN:
            continue
        known.append(trial)
        rest = attempt(candidate, Folds(folds.x, folds.held[1:]), generator)
        if rest is not None:
            kept.append(_joined(trial, rest))
    return kept


def _joined(one: Trial, two: Trial) -> Trial:
    log_densities = torch.cat([one.log_densities, two.log_densities])
    return Trial(one.candidate, log_densities, one.fits + two.fits)


def _on_first(trial: Trial, first: Folds) -> Trial:
    return Trial(trial.candidate, trial.log_densities[: len(first.held[0])], trial.fits[:1])


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
